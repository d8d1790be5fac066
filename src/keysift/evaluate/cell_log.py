"""Finished cells of a retrieval grid on disk, so that an interrupted measurement resumes."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keysift.core import safe_json
from keysift.core.config import from_dict, to_dict
from keysift.records.evaluation import Cell


class CellLog:
    """A JSON Lines file of cells in `folder`; without a folder, nothing is stored.

    `conditions` holds what a cell depends on besides its own fields, such as the model and the seed. Cells that were
    measured under other conditions are ignored.
    """

    def __init__(self, folder: Path | None, name: str, conditions: Mapping[str, Any]) -> None:
        self._path = None if folder is None else folder / f"{name}-cells.jsonl"
        self._conditions = conditions

    def cells(self) -> Iterator[Cell]:
        """Cells of earlier calls. Incomplete lines are skipped."""
        if self._path is None or not self._path.is_file():
            return
        for line in self._path.read_text(encoding="utf-8").splitlines():
            try:
                entry = safe_json.loads(line)
                if entry["conditions"] == self._conditions:
                    yield from_dict(Cell, entry["cell"])
            except (ValueError, KeyError, TypeError):
                continue

    def add(self, cell: Cell) -> None:
        """Append one cell."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps({"conditions": self._conditions, "cell": to_dict(cell)}) + "\n")
