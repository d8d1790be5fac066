"""Stored benchmark results can be read, were measured at full size, and state their verdicts correctly."""

from pathlib import Path

import pytest

from keysift.core.config import load
from keysift.records.bench import Result

FOLDER = Path(__file__).parents[2] / "docs" / "results"
FILES = sorted(FOLDER / f"{name}.json" for name in ("screening", "mechanisms", "models", "documents", "decode"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_stored_result(path: Path) -> None:
    """Whether a target is met depends on the machine, so it is shown and not asserted."""
    result = load(Result, path)
    assert result.benchmark == path.stem
    assert "--quick" not in result.command
    assert result.rows
    assert result.targets
    for target in result.targets:
        within = target.value >= target.target if target.bound == "at least" else target.value <= target.target
        assert target.met is within, target.name


def test_decoding_was_measured_on_a_long_text() -> None:
    assert max(row.tokens for row in load(Result, FOLDER / "decode.json").rows) >= 100_000
