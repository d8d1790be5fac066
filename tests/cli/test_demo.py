"""`keysift demo`, short: two models trained side by side, asked, and a page; interrupted and resumed."""

import json
from pathlib import Path

import pytest

from keysift.cli import demo_recall
from keysift.cli.demo_chart import table_of, text_chart
from keysift.cli.main import _main
from keysift.models.kinds import configure, empty
from keysift.models.language import count
from keysift.sweep.drive import Outcome
from keysift.train.demo import recall_runs
from tests.refusals import refuses
from tests.web.reports import retrieval


def test_the_chart_fits_80_columns_and_shows_every_line() -> None:
    records = [
        retrieval("a", "multiscreen", ("as trained", "windows expanded"), 1.0),
        retrieval("b", "transformer", ("as trained", "RoPE x2", "RoPE x4"), 0.5),
    ]
    drawn, numbers = text_chart(records), table_of(records)
    assert max(map(len, (drawn + "\n" + numbers).splitlines())) <= 80
    top = next(line for line in drawn.splitlines() if line.startswith("100%"))
    assert top.count("M") == 3, "flat"
    assert top.count("m") == 3
    assert top.count("T") == 1, "falls"
    assert top.count("t") == 3
    assert drawn.splitlines()[-1].split() == ["1x", "2x", "4x"]
    assert numbers.splitlines()[2].split()[-3:] == ["100%", "50%", "25%"]


def test_the_models_are_of_one_size() -> None:
    ours, theirs = (
        count(empty(configure(one.model, vocab_size=561, context=one.context))) for one in recall_runs().values()
    )
    assert abs(theirs / ours - 1) < 0.002


@pytest.mark.slow
def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_recall, "INSTANCES", 1)
    monkeypatch.setattr(demo_recall, "DEPTHS", (0.5,))
    out = tmp_path / "demo"
    argv = ["demo", "--out", str(out), "--steps", "2"]

    def interrupt(run: Path, beyond: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(demo_recall, "_ask", interrupt)
        assert _main(argv) == 130
    assert f"To resume: keysift demo --out {out} --steps 2" in capsys.readouterr().err
    assert not (out / "report.html").exists()
    assert _main(argv) == 0
    said = capsys.readouterr().out
    assert "112,970 and 112,840 parameters, the same 4,096 tokens" in said
    assert (out / "report.html").as_uri() in said
    page = (out / "report.html").read_text()
    assert "Token stream: the same in the same order" in page
    assert "RoPE x64" in page
    assert page.count("<svg") > 20, "maps, curves, grids"
    # A finished demo is kept, and another goes beside it.
    before = page
    assert _main([*argv, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    assert (tmp_path / "demo-2" / "report.html").is_file()
    assert (out / "report.html").read_text() == before


def test_a_run_that_failed_says_why_and_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = [Outcome("multiscreen", None, "the disk is full")]
    monkeypatch.setattr(demo_recall, "sweep", lambda *args, **options: failed)
    with refuses("multiscreen failed: the disk is full; to resume: keysift demo"):
        demo_recall.recall_demo(tmp_path / "demo", steps=2, json=False, named=False)
