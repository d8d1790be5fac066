"""Cells of an interrupted grid on disk."""

from pathlib import Path

from keysift.evaluate.cell_log import CellLog
from keysift.records.evaluation import Cell


def test_logged_cells_are_read_under_the_same_conditions_only(tmp_path: Path) -> None:
    cell = Cell(length=8, depth=0.5, setting="as trained", correct=1, total=2)
    CellLog(tmp_path / "new", "passkey", {"seed": 0}).add(cell)
    assert list(CellLog(tmp_path / "new", "passkey", {"seed": 0}).cells()) == [cell]
    assert list(CellLog(tmp_path / "new", "passkey", {"seed": 1}).cells()) == []
