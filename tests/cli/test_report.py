"""`keysift report` collects the records of runs, and the page lists records that cannot be read."""

import json
from pathlib import Path

import pytest

from keysift.cli.main import _main
from keysift.cli.verbs import report
from keysift.core.config import from_dict, to_dict
from keysift.records.evaluation import Retrieval, read_record
from keysift.runs.layout import EVALS
from keysift.runs.summary import summary
from keysift.sweep import evaluate_runs
from keysift.sweep.evaluate_runs import cheap_evaluations
from keysift.sweep.report import gather_report, run_directories
from tests.bench.results import RESULT
from tests.refusals import refuses
from tests.runs.handwritten import STEPS, falling, write_run
from tests.web.report.records import retrieval


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of a sweep over two learning rates."""
    path = tmp_path / "sweep" / "a"
    write_run(path, falling(2.0), lr=0.01)
    write_run(tmp_path / "sweep" / "b", falling(3.0), lr=0.1)
    (tmp_path / "sweep" / "sweep.json").write_text("[]")
    return path


def record(path: Path, step: int = STEPS) -> str:
    data = to_dict(retrieval(str(path), "multiscreen", ("as trained",), 1.0))
    data["subject"]["step"] = step
    return json.dumps(data)


def test_records_of_a_run_are_collected(run: Path, tmp_path: Path) -> None:
    (run / EVALS).mkdir()
    (run / EVALS / "recall.json").write_text(record(run))
    (run / EVALS / "old.json").write_text(record(run, step=7))
    (run / EVALS / "broken.json").write_text('{"format": "keysift-retrieval"')
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "recall.json").write_text(record(run))
    (tmp_path / "out" / "other.json").write_text(record(tmp_path / "elsewhere"))
    gathered = gather_report([run], title="t", command="c", records=[tmp_path / "out"])
    (report_run,) = gathered.runs
    assert len(report_run.records) == 3
    assert report_run.records[0] == from_dict(Retrieval, json.loads(record(run, step=7)))
    assert (report_run.stream, report_run.tokens, report_run.command) == (
        "abc",
        STEPS * 1024,
        f"keysift train --out {run}",
    )
    assert report_run.samples[-1].text.startswith("def <script>")
    stale, *others = sorted(gathered.notes, key=lambda note: "measured at step 7" not in note)
    assert "the run is at 40 now" in stale
    assert len(others) == 2
    assert "broken.json is not a record of keysift eval" in " ".join(others)
    assert "which is not a run of this report" in " ".join(others)
    (sweep,) = gathered.stability
    assert [point.rate for point in sweep.points] == [0.01, 0.1], "the sweep that contains the run"


def test_report_command(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "page.html"
    assert _main(["report", str(run), "-o", str(out), "--title", "Two", "--scaling", str(run.parent)]) == 0
    assert out.as_uri() in capsys.readouterr().out
    page = out.read_text()
    assert f"keysift report {run} --out {out} --title Two --scaling {run.parent}" in page
    assert "Stability over learning rates" in page


def test_cheap_evaluations_depend_on_the_run(tmp_path: Path) -> None:
    write_run(tmp_path / "text", falling(1.0), data="stdlib")
    rope = {"arch": "transformer", "psi": None, "depth": 1, "heads": 1, "width": 8}
    write_run(tmp_path / "recall", falling(1.0), data="recall:letters=8", context=64, **rope)
    names = [evaluation.name for evaluation in cheap_evaluations(summary(tmp_path / "text"))]
    assert names == ["loss", "positions", "windows", "relevance"]
    names = [evaluation.name for evaluation in cheap_evaluations(summary(tmp_path / "recall"))]
    assert names == ["recall", "windows", "relevance"]


def test_an_interrupted_report_explains_how_to_resume(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluate_runs, "open_measured_model", interrupt)
    assert _main(["report", str(run), "--measure"]) == 130
    assert "finished measurements are saved, and the same command resumes" in capsys.readouterr().err


def test_refusals(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with refuses("name at least one run"):
        report.run(report.Args(runs=()))
    with refuses("contains no run; name folders"):
        run_directories([tmp_path / "nowhere"])
    with refuses("--records takes folders"):
        gather_report([run], title="", command="", records=[tmp_path / "nowhere"])
    with refuses("nowhere.json is not a record of keysift eval"):
        read_record(tmp_path / "nowhere.json")
    (tmp_path / "screening.json").write_text(json.dumps(to_dict(RESULT)))
    with refuses("screening.json is keysift bench screening; a report shows keysift bench models"):
        gather_report([run], title="", command="", benchmarks=[tmp_path / "screening.json"])
    # A run without weights gives one line per measurement, and the page is still written.
    assert _main(["report", str(run), "-o", str(tmp_path / "page.html"), "--measure"]) == 0
    output = capsys.readouterr().err
    assert output.count("was not measured") == 4
    assert "was not measured" in (tmp_path / "page.html").read_text()
