"""E4 from a benchmark's record: the verdict follows the quartiles at the longest length, and a quick one has none."""

from dataclasses import replace
from pathlib import Path

import pytest

from keysift.bench.record import Result, Row, Spread
from keysift.core.config import load
from keysift.web.latency_page import latency_page, latency_verdicts, read_latency

RECORD = Path(__file__).parents[2] / "docs" / "results" / "models.json"


def spread(*values: float) -> Spread:
    low, median, high = values
    return Spread(low=low, median=median, high=high)


def row(tokens: int, ratio: Spread | None, step: str = "forward", what: str = "Multiscreen, wide") -> Row:
    told = {"against": "Transformer", "their_seconds": spread(2, 2, 2), "speedup": ratio} if ratio else {}
    return Row(what=what, tokens=tokens, step=step, seconds=spread(1, 1, 1), **told)  # type: ignore[arg-type]


@pytest.fixture
def full() -> Result:
    return replace(load(Result, RECORD), command="keysift bench models")


def test_the_longest_length_decides(full: Result) -> None:
    rows = (row(64, spread(3, 4, 5)), row(2048, spread(0.5, 0.6, 0.7)), row(2048, None, what="Transformer"))
    decode = row(2**20, spread(2, 3, 4), "decode"), row(2**20, spread(0.9, 1.2, 1.3), "decode", "Multiscreen, narrow")
    found = latency_verdicts(replace(full, rows=(*rows, *decode)))
    assert [one.word for one in found] == ["not reproduced", "reproduced at this scale", "undecided"]
    assert found[0].claim.startswith("A forward pass over 2,048 tokens takes less time in a Multiscreen, wide than")
    assert found[0].why == "0.60 times as fast, quartiles 0.50 to 0.70"
    once = (row(64, spread(*[ratio] * 3), what=f"Multiscreen {ratio}") for ratio in (0.4, 0.6, 1.9, 2.1))
    found_once = [one.word for one in latency_verdicts(replace(full, rows=tuple(once)))]
    assert found_once == ["not reproduced", "undecided", "undecided", "reproduced at this scale"]
    quick = replace(full, rows=rows, command="keysift bench models --quick")
    assert [one.word for one in latency_verdicts(quick)] == ["undecided"]


def test_the_page(full: Result, tmp_path: Path) -> None:
    page = latency_page(replace(full, rows=(row(64, spread(3, 3, 3)),)))
    assert "| forward | 64 | Multiscreen, wide | 1000 | 3.00 times as fast, one turn |  |" in page
    assert "```sh\nkeysift bench models\n```" in page
    assert read_latency(tmp_path / "models.json") is None
    assert "no record yet" in latency_page(None)
