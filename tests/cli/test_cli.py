"""The command line as a user meets it: real processes, real output."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from keysift.cli import demo
from keysift.cli.demo_text import numbered
from keysift.cli.main import _main, parse
from keysift.kernels.weigh import weigh
from keysift.mechanisms import MECHANISMS
from keysift.mechanisms.spec import Promise
from tests.refusals import refuses, refuses_in_process

KEYSIFT = str(Path(sys.executable).parent / "keysift")


def keysift(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert _main(list(arguments)) == 0
    return capsys.readouterr().out


def test_mechanisms_json_lists_every_mechanism_with_every_promise(capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(keysift(capsys, "mechanisms", "--json"))
    assert [entry["name"] for entry in listed] == MECHANISMS.names()
    for entry, mechanism in zip(listed, MECHANISMS, strict=True):
        expected = {p.name.lower(): "holds" if p in mechanism.holds else "refuted" for p in Promise}
        assert entry["promises"] == expected


def test_mechanisms_table_and_page(capsys: pytest.CaptureFixture[str]) -> None:
    table = keysift(capsys, "mechanisms")
    assert all(name in table for name in MECHANISMS.names())
    assert all(promise.value in table for promise in Promise)
    page = keysift(capsys, "mechanisms", "screening")
    assert "holds        each key is judged alone" in page
    assert "acceptance: the width r" in page


def test_a_wrapped_mechanism_has_a_page_of_claims(capsys: pytest.CaptureFixture[str]) -> None:
    page = keysift(capsys, "mechanisms", "screening+value_gate")
    assert "Screening with a value gate" in page
    assert "holds" not in page
    assert "Claimed, not tested here: screening+value_gate. Run keysift check screening+value_gate" in page


def test_weigh(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(keysift(capsys, "weigh", "--scores", "2,1,0.5", "--json"))
    assert [*found["weights"], *found["refused"]] == [n for n in MECHANISMS.names() if n != "screening"] + ["screening"]
    assert found["weights"]["softmax"] == pytest.approx([0.628532, 0.231224, 0.140244], abs=1e-6)
    second = json.loads(
        keysift(capsys, "weigh", "--scores=2,1", "--second=0,3", "--mechanism", "differential_v2", "--json")
    )
    assert second["weights"]["differential_v2"][1] < 0


def test_a_score_means_one_thing(capsys: pytest.CaptureFixture[str]) -> None:
    """Cosines where cosines are read, here as in Python; a number that is none costs its own row alone."""
    told = json.loads(keysift(capsys, "weigh", "--scores", "0.9,0.7,0.3", "--mechanism", "screening", "--json"))
    assert told["weights"]["screening"] == pytest.approx(weigh("screening", [0.9, 0.7, 0.3]).tolist(), abs=1e-7)
    table = keysift(capsys, "weigh", "--scores", "2,1", "--mechanism", "screening", "softmax")
    assert "softmax   0.731 0.269" in table
    assert "screening reads scores as cosines in [-1, 1], got 2; divide by" in table
    assert "relu" not in table
    assert _main(["weigh", "--scores", "2,1", "--mechanism", "screening"]) == 2


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(keysift(capsys, "doctor", "--json"))
    assert facts["versions"]["torch"]
    assert {backend["name"]: backend["usable"] for backend in facts["backends"]}["dense"]
    text = keysift(capsys, "doctor")
    assert "backend dense: usable" in text
    assert "threads" in text


def test_doctor_says_what_is_not_installed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from keysift.cli import doctor

    monkeypatch.setattr(doctor, "_PACKAGES", ("no-such-package",))
    assert "no-such-package not installed" in keysift(capsys, "doctor")


def test_demo_marks_what_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "deep" / "demo.html"
    text = keysift(capsys, "demo", "--text", "--out", str(page), "--seconds", "0")
    softmax = next(line for line in text.splitlines() if line.startswith("softmax "))
    assert "0.629* 0.231* 0.140" in softmax
    screening = next(line for line in text.splitlines() if line.startswith("screening "))
    assert "*" not in screening
    assert screening.rstrip().endswith("0 0 0")
    assert page.as_uri() in text
    record = json.loads(keysift(capsys, "demo", "--text", "--out", str(page), "--json"))
    assert len(record["rows"]) == len(MECHANISMS)


def test_demo_marks_exactly_those_that_compare_keys() -> None:
    """A mechanism that judges each key alone is never marked; one that does not is, or shows it at other scores."""
    from keysift.evaluate.context import context_experiment

    for row in context_experiment().rows:
        if row.absolute:
            assert not any(any(marks) for marks in row.moved), row.mechanism


def test_help_does_not_import_torch() -> None:
    code = "import sys; from keysift.cli.main import _main\ntry: _main(['--help'])\nexcept SystemExit: pass\n"
    done = subprocess.run(
        [sys.executable, "-c", code + "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "mechanisms" in done.stdout


@pytest.mark.slow
def test_a_mistake_is_one_line_and_exit_code_2() -> None:
    refuses_in_process(
        r"keysift: no mechanism is called 'sofmax'; did you mean 'softmax'", [KEYSIFT, "mechanisms", "sofmax"]
    )
    refuses_in_process(r"keysift: --scores must be finite numbers", [KEYSIFT, "weigh", "--scores", "2;1"])


@pytest.mark.parametrize("text", ["2,x", "", "1,,2", "nan", "inf,1"])
def test_scores_that_are_not_numbers(text: str) -> None:
    from keysift.cli.weigh import numbers

    with refuses("--scores must be finite numbers separated by commas, got"):
        numbers("--scores", text)


def test_a_mistake_returns_2_in_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert _main(["mechanisms", "nothing"]) == 2
    assert capsys.readouterr().err.startswith("keysift: no mechanism is called 'nothing'")


def test_a_value_a_config_refuses_is_one_line_and_a_wrong_flag_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    with refuses("seed must lie in 0"):
        parse(["generate", "run", "--prompt", "a", "--seed", "-1"])
    with pytest.raises(SystemExit):
        parse(["generate", "run", "--\x1b]0;title\x07"])
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert r"\x1b]0;title\x07" in said


def test_a_demo_keeps_the_run_of_an_earlier_one(tmp_path: Path) -> None:
    """It suggests to resume it; whoever did must find it again."""
    places = numbered(tmp_path / "demo-run")
    assert [next(places).name for _ in range(3)] == ["demo-run", "demo-run-2", "demo-run-3"]
    for wrong in (float("nan"), float("inf"), -1.0):
        with refuses("--seconds must be a number of seconds"):
            demo.run(demo.Args(text=True, out=tmp_path / "x.html", seconds=wrong))
    with refuses("--seconds is of keysift demo --text"):
        demo.run(demo.Args(out=tmp_path / "x", seconds=1.0))
    with refuses("--steps is of the demo without --text"):
        demo.run(demo.Args(text=True, steps=1))
    with refuses("--steps must be at least 1, got 0"):
        demo.run(demo.Args(out=tmp_path / "x", steps=0))


def test_what_the_system_refuses_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for argv in (
        ["demo", "--text", "--seconds", "0", "--out", str(tmp_path)],
        ["demo", "--text", "--seconds", "0", "--out", str(tmp_path / "file" / "x.html")],
        ["data", "build", "abcdigits:documents=3", "--out", "a" * 300],
        ["generate", "a" * 300, "--prompt", "a"],
    ):
        assert _main(argv) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.slow
def test_standard_output_that_is_closed_or_full() -> None:
    command = f"{shlex.quote(sys.executable)} -P -m keysift presets --json"
    for redirected, code, said in ((">&-", 0, ""), (">/dev/full", 2, "No space left on device")):
        done = subprocess.run(f"{command} {redirected}", shell=True, check=False, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == (1 if said else 0), done.stderr
