"""Latency claims: the quartiles at the longest length decide, and a quick benchmark decides nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from evidence.claims.latency import faster_at_longest, latency_tables, read_benchmark
from evidence.pages.render import render_study, verdicts
from evidence.study import ROOT, Claim, Page, Study, read_study
from keysift.core.config import load
from keysift.records.bench import Quartiles, Result, Row

STUDY = read_study(ROOT / "latency")
RECORD = ROOT.parent / STUDY.page.benchmark


def spread(*values: float) -> Quartiles:
    low, median, high = values
    return Quartiles(low=low, median=median, high=high)


def row(tokens: int, ratio: Quartiles | None, step: str = "forward", what: str = "Multiscreen, wide") -> Row:
    rival = {"against": "Transformer", "their_seconds": spread(2, 2, 2), "speedup": ratio} if ratio else {}
    return Row(what=what, tokens=tokens, step=step, seconds=spread(1, 1, 1), **rival)  # type: ignore[arg-type]


def claim(ours: str = "Multiscreen, wide", step: str = "forward") -> Claim:
    return Claim(text="It is faster", rule="faster_at_longest", ours=ours, step=step)  # type: ignore[arg-type]


@pytest.fixture
def full() -> Result:
    return replace(load(Result, RECORD), command="keysift bench models")


def test_the_longest_length_decides(full: Result) -> None:
    rows = (row(64, spread(3, 4, 5)), row(2048, spread(0.5, 0.6, 0.7)), row(2048, None, what="Transformer"))
    decode = row(2**20, spread(2, 3, 4), "decode"), row(2**20, spread(0.9, 1.2, 1.3), "decode", "Multiscreen, narrow")
    bench = replace(full, rows=(*rows, *decode))
    forward = faster_at_longest(claim(), bench)
    assert forward.word == "contradicted"
    assert forward.why == "at 2,048 tokens, 0.60 times as fast, quartiles 0.50 to 0.70"
    assert faster_at_longest(claim(step="decode"), bench).word == "supported"
    assert faster_at_longest(claim("Multiscreen, narrow", "decode"), bench).word == "underpowered"
    quick = replace(full, rows=rows, command="keysift bench models --quick")
    assert faster_at_longest(claim(), quick).word == "underpowered"


def test_a_single_round_needs_a_factor_of_two(full: Result) -> None:
    once = replace(full, rows=tuple(row(64, spread(*[r] * 3), what=f"Multiscreen {r}") for r in (0.4, 0.6, 1.9, 2.1)))
    words = [faster_at_longest(claim(f"Multiscreen {ratio}"), once).word for ratio in (0.4, 0.6, 1.9, 2.1)]
    assert words == ["contradicted", "underpowered", "underpowered", "supported"]


def test_the_page(full: Result, tmp_path: Path) -> None:
    lines = latency_tables(STUDY, replace(full, rows=(row(64, spread(3, 3, 3)),)))
    assert "| forward | 64 | Multiscreen, wide | 1,000 | 3.00 times as fast, one round |  |" in lines
    assert read_benchmark(tmp_path / "models.json") is None
    page = Page(order=1, title="Latency", larger="", benchmark="nowhere.json")
    study = Study(tmp_path, page, (claim(),), None, {})
    text = render_study(study, verdicts(study))["README.md"]
    assert "no record of keysift bench models yet" in text
    assert "```sh\nkeysift bench models\n```" in text


def test_claims_name_rows_of_the_benchmark(full: Result) -> None:
    assert not [c.ours for c in STUDY.claims if "no record" in faster_at_longest(c, full).why]
