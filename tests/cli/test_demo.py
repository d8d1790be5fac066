"""`keysift demo` with few steps: training, evaluation, report, interruption and resume."""

import json
from pathlib import Path

import pytest

from keysift.cli.demos import recall as demo_recall
from keysift.cli.main import _main, parse
from keysift.cli.terminal.recall_chart import accuracy_table, text_chart
from keysift.cli.verbs import weigh
from keysift.models.language_model import count_parameters
from keysift.models.registry import build_meta, configure
from keysift.sweep.drive import Outcome
from keysift.train.demo import recall_runs
from keysift.verify.competitors import context_experiment
from tests.refusals import refuses
from tests.web.report.records import retrieval


def test_the_chart_fits_80_columns_and_shows_every_line() -> None:
    records = [
        retrieval("a", "multiscreen", ("as trained", "windows expanded"), 1.0),
        retrieval("b", "transformer", ("as trained", "RoPE x2", "RoPE x4"), 0.5),
    ]
    chart, numbers = text_chart(records), accuracy_table(records)
    assert max(map(len, (chart + "\n" + numbers).splitlines())) <= 80
    top = next(line for line in chart.splitlines() if line.startswith("100%"))
    assert top.count("M") == 3, "flat"
    assert top.count("m") == 3
    assert top.count("T") == 1, "falls"
    assert top.count("t") == 3
    assert chart.splitlines()[-1].split() == ["1x", "2x", "4x"]
    assert numbers.splitlines()[2].split()[-3:] == ["100%", "50%", "25%"]


def test_the_models_have_equal_size() -> None:
    ours, theirs = (
        count_parameters(build_meta(configure(config.model, vocab_size=561, context=config.context)))
        for config in recall_runs().values()
    )
    assert abs(theirs / ours - 1) < 0.002


@pytest.mark.slow
@pytest.mark.usefixtures("forked_runs")
def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_recall, "INSTANCES", 1)
    monkeypatch.setattr(demo_recall, "DEPTHS", (0.5,))
    out = tmp_path / "demo"
    argv = ["demo", "--out", str(out), "--steps", "2"]

    def interrupt(run: Path, rope_factors: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(demo_recall, "_evaluate", interrupt)
        assert _main(argv) == 130
    assert f"To resume: keysift demo --out {out} --steps 2" in capsys.readouterr().err
    assert not (out / "report.html").exists()
    assert _main(argv) == 0
    text = capsys.readouterr().out
    assert "112,970 and 112,840 parameters, the same 4,096 tokens" in text
    assert (out / "report.html").as_uri() in text
    page = (out / "report.html").read_text()
    assert "Token stream: identical for all runs (by hash)" in page
    assert "RoPE x64" in page
    assert page.count("<svg") > 20, "maps, curves, grids"
    # A finished demo is kept; a new one gets another directory.
    before = page
    assert _main([*argv, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    assert (tmp_path / "demo-2" / "report.html").is_file()
    assert (out / "report.html").read_text() == before


def test_a_failed_run_gives_the_reason_and_how_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = [Outcome("multiscreen", None, "the disk is full")]
    monkeypatch.setattr(demo_recall, "sweep", lambda *args, **options: failed)
    with refuses("multiscreen failed: the disk is full; to resume: keysift demo"):
        demo_recall.recall_demo(tmp_path / "demo", steps=2, json=False, named=False)


def test_weigh_and_demo_give_the_same_weights(capsys: pytest.CaptureFixture[str]) -> None:
    experiment = context_experiment()
    scores = ",".join(map(str, experiment.contexts[1].scores))
    assert _main(["weigh", "--scores", scores, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    for row in experiment.rows:
        if row.read[1] == experiment.contexts[1].scores:
            assert printed["weights"][row.mechanism] == list(row.weights[1])
    assert printed["scalars"]["relu"] == {"length": 4.0}


def test_weigh_takes_scalars(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["weigh", "--scores", "0.9,0.7", "--mechanism", "screening", "--json"]
    assert _main([*arguments, "--scalar", "acceptance=0.3"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["scalars"]["screening"]["acceptance"] == 0.3
    assert printed["weights"]["screening"] == pytest.approx([(1 - 0.1 / 0.3) ** 2, 0])
    for wrong in ("accept=0.3", "acceptance", "acceptance=", "acceptance=nan", "acceptance=0.3,0.5"):
        with refuses(f"--scalar must be NAME=NUMBER with a scalar of the chosen .* finite number, got '{wrong}'; the"):
            weigh.run(parse([*arguments, "--scalar", wrong]))
