"""`keysift report`: what lies beside runs is gathered, and what cannot be read is said on the page."""

import json
from pathlib import Path

import pytest

from keysift.cli import missing, report
from keysift.cli.gather import gather, paths_of
from keysift.cli.main import _main
from keysift.core.config import from_dict, to_dict
from keysift.evaluate.measured import Retrieval
from keysift.evaluate.records import read_record
from keysift.runs.layout import EVALS
from keysift.runs.summary import summary
from tests.refusals import refuses
from tests.runs.written import STEPS, falling, write_run
from tests.web.reports import retrieval


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """In the folder of a sweep over two rates."""
    path = tmp_path / "sweep" / "a"
    write_run(path, falling(2.0), lr=0.01)
    write_run(tmp_path / "sweep" / "b", falling(3.0), lr=0.1)
    (tmp_path / "sweep" / "sweep.json").write_text("[]")
    return path


def record(of: Path, step: int = STEPS) -> str:
    told = to_dict(retrieval(str(of), "multiscreen", ("as trained",), 1.0))
    told["subject"]["step"] = step
    return json.dumps(told)


def test_what_lies_beside_a_run_is_found(run: Path, tmp_path: Path) -> None:
    (run / EVALS).mkdir()
    (run / EVALS / "recall.json").write_text(record(run))
    (run / EVALS / "old.json").write_text(record(run, step=7))
    (run / EVALS / "broken.json").write_text('{"format": "keysift-retrieval"')
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "recall.json").write_text(record(run))
    (tmp_path / "out" / "other.json").write_text(record(tmp_path / "elsewhere"))
    found = gather([run], title="t", command="c", records=[tmp_path / "out"])
    (one,) = found.runs
    assert len(one.records) == 3
    assert one.records[0] == from_dict(Retrieval, json.loads(record(run, step=7)))
    assert (one.stream, one.tokens, one.command) == ("abc", STEPS * 1024, f"keysift train --out {run}")
    assert one.samples[-1].text.startswith("def <script>")
    stale, *others = sorted(found.notes, key=lambda note: "measured at step 7" not in note)
    assert "the run is at 40 now" in stale
    assert len(others) == 2
    assert "broken.json is no record of keysift eval" in " ".join(others)
    assert "which is no run of this report" in " ".join(others)
    (sweep,) = found.stability
    assert [point.rate for point in sweep.points] == [0.01, 0.1], "the sweep the run lies in"


def test_the_verb(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "page.html"
    assert _main(["report", str(run), "-o", str(out), "--title", "Two", "--scaling", str(run.parent)]) == 0
    assert out.as_uri() in capsys.readouterr().out
    page = out.read_text()
    assert f"keysift report {run} --out {out} --title Two --scaling {run.parent}" in page
    assert "Stability over learning rates" in page


def test_cheap_measures_follow_from_what_a_run_is(tmp_path: Path) -> None:
    write_run(tmp_path / "text", falling(1.0), data="stdlib")
    rope = {"arch": "transformer", "psi": None, "depth": 1, "heads": 1, "width": 8}
    write_run(tmp_path / "recall", falling(1.0), data="recall:letters=8", context=64, **rope)
    kinds = [type(do).__name__ for _, do in missing.cheap(summary(tmp_path / "text"))]
    assert kinds == ["Loss", "Positions", "Windows", "Relevance"]
    first, *_ = (do for _, do in missing.cheap(summary(tmp_path / "recall")))
    assert first.task == "recall"  # type: ignore[union-attr]
    assert first.beyond.rope_factors == (2, 4, 8, 16, 32, 64)  # type: ignore[union-attr]
    assert not first.beyond.expand_windows  # type: ignore[union-attr]


def test_an_interrupted_call_says_that_it_resumes(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(do: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(missing, "measure", interrupt)
    assert _main(["report", str(run), "--measure"]) == 130
    assert "what was measured is kept, and the same command resumes" in capsys.readouterr().err


def test_refusals(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with refuses("name at least one run"):
        report.run(report.Args(runs=()))
    with refuses("holds no run; name folders"):
        paths_of([tmp_path / "nowhere"])
    with refuses("--records takes folders"):
        gather([run], title="", command="", records=[tmp_path / "nowhere"])
    with refuses("nowhere.json is no record of keysift eval"):
        read_record(tmp_path / "nowhere.json")
    # A run whose weights are not there: one line, and the page is made all the same.
    assert _main(["report", str(run), "-o", str(tmp_path / "page.html"), "--measure"]) == 0
    said = capsys.readouterr().err
    assert said.count("was not measured") == 4
    assert "was not measured" in (tmp_path / "page.html").read_text()
