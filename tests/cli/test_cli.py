"""Commands of keysift, in process and as separate processes."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keysift.cli.demos.text import numbered
from keysift.cli.main import _main, parse
from keysift.cli.verbs import demo, doctor
from keysift.kernels.weigh import weigh
from keysift.mechanisms import MECHANISMS
from keysift.mechanisms.spec import Promise
from keysift.train.settings import read_toml
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
    by_name = {entry["name"]: entry for entry in listed}
    years = {name: by_name[name]["year"] for name in ("softmax", "softmax1", "null_value", "softmax+value_gate")}
    assert years == {"softmax": 2017, "softmax1": 2023, "null_value": 2024, "softmax+value_gate": 2025}
    held = {name: by_name[name]["cache"] for name in ("softmax", "tda", "forgetting")}
    assert held == {"softmax": "k, v", "tda": "2 k, v", "forgetting": "k, v, log_forget"}
    assert by_name["softmax"]["backends"] == ["sdpa", "by_rows", "dense"]
    assert all(entry["backends"][-2:] == ["by_rows", "dense"] for entry in listed)


def test_a_row_of_the_markdown_table_has_source_promises_backends_and_cache(capsys: pytest.CaptureFixture[str]) -> None:
    rows = keysift(capsys, "mechanisms", "--markdown").splitlines()
    assert len([row for row in rows if row.startswith("| [`")]) == len(MECHANISMS.names())
    assert "| [`tra`](threshold.md) | arXiv:2601.12145 | 2026 | `·●●●· ···●● ·●●●●` | `sums_cpu` | k, v |" in rows


def test_mechanisms_table_and_page(capsys: pytest.CaptureFixture[str]) -> None:
    table = keysift(capsys, "mechanisms")
    assert all(name in table for name in MECHANISMS.names())
    assert all(promise.value in table for promise in Promise)
    page = keysift(capsys, "mechanisms", "screening")
    assert "holds        the weight of a key does not change" in page
    assert "acceptance: the width r" in page


def test_a_wrapped_mechanism_has_a_page_of_claims(capsys: pytest.CaptureFixture[str]) -> None:
    page = keysift(capsys, "mechanisms", "screening+value_gate")
    assert "Screening with a value gate" in page
    assert "holds" not in page
    assert "Claimed, not tested here: screening+value_gate. Run keysift check screening+value_gate" in page


def test_weigh(capsys: pytest.CaptureFixture[str]) -> None:
    result = json.loads(keysift(capsys, "weigh", "--scores", "2,1,0.5", "--json"))
    assert {*result["weights"], *result["refused"]} == set(MECHANISMS.names())
    assert list(result["refused"]) == ["screening", "tra", "tda", "lssar"], "they read scores as cosines"
    assert result["weights"]["softmax"] == pytest.approx([0.628532, 0.231224, 0.140244], abs=1e-6)
    second = json.loads(
        keysift(capsys, "weigh", "--scores=2,1", "--second=0,3", "--mechanism", "differential_v2", "--json")
    )
    assert second["weights"]["differential_v2"][1] < 0


def test_scores_of_screening_are_cosines(capsys: pytest.CaptureFixture[str]) -> None:
    """Scores of screening are cosines, as in Python. An invalid cosine affects the row of screening only."""
    values = json.loads(keysift(capsys, "weigh", "--scores", "0.9,0.7,0.3", "--mechanism", "screening", "--json"))
    assert values["weights"]["screening"] == pytest.approx(weigh("screening", [0.9, 0.7, 0.3]).tolist(), abs=1e-7)
    table = keysift(capsys, "weigh", "--scores", "2,1", "--mechanism", "screening", "softmax")
    assert "softmax   0.731 0.269" in table
    assert "screening reads scores as cosines in [-1, 1], got 2; divide by" in table
    assert "relu" not in table
    assert _main(["weigh", "--scores", "2,1", "--mechanism", "screening"]) == 2


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(keysift(capsys, "doctor", "--json"))
    assert report["versions"]["torch"]
    assert {backend["name"]: backend["usable"] for backend in report["backends"]}["dense"]
    text = keysift(capsys, "doctor")
    assert "backend dense: usable" in text
    assert "threads" in text


def test_doctor_lists_missing_packages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "_PACKAGES", ("no-such-package",))
    assert "no-such-package not installed" in keysift(capsys, "doctor")


@pytest.mark.slow
def test_doctor_checks_the_installation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A wrong kernel, a loss that does not fall and a missing browser are reported; the other checks still run."""
    from keysift.cli import installation
    from keysift.verify import check

    monkeypatch.setattr(installation, "MECHANISMS", ("screening",))
    monkeypatch.setattr(installation, "_hub", lambda folder: "not imported here, because that takes seconds")
    lines = keysift(capsys, "doctor", "--check").splitlines()
    assert [line.split()[0] for line in lines[::2]] == ["passed"] * 6
    assert "screening_cpu" in lines[1]
    assert "agree with keysift" in lines[7]

    def disagrees(mechanism: object, backend: str) -> check.CheckLine:
        return check.CheckLine(name=backend, stated="agrees", observed="disagrees", correct=False, example="off by 1")

    monkeypatch.setattr(check, "check_backend", disagrees)
    monkeypatch.setattr(installation, "_BROWSERS", ("no-such-browser",))
    monkeypatch.setattr(installation, "STEPS", 1)
    with refuses("screening_cpu: off by 1"):
        installation._kernels(tmp_path)
    with refuses("no browser found"):
        installation._page(tmp_path)
    with refuses("2 of 6 checks failed: kernels agree with the definition, a model trains"):
        doctor.run(doctor.Args(check=True))
    states = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()[::2]]
    assert states == ["failed", "failed", "passed", "not run", "passed", "passed"]


def test_demo_marks_changed_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_demo_never_marks_pointwise_mechanisms() -> None:
    """A pointwise mechanism is never marked."""
    from keysift.verify.competitors import context_experiment

    for row in context_experiment().rows:
        if row.absolute:
            assert not any(any(marks) for marks in row.moved), row.mechanism


def test_help_does_not_import_torch() -> None:
    code = "import sys; from keysift.cli.main import _main\ntry: _main(['--help'])\nexcept SystemExit: pass\n"
    process = subprocess.run(
        [sys.executable, "-c", code + "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert "mechanisms" in process.stdout


@pytest.mark.slow
def test_an_error_is_one_line_and_exit_code_2() -> None:
    refuses_in_process(
        r"keysift: no mechanism is called 'sofmax'; did you mean 'softmax'", [KEYSIFT, "mechanisms", "sofmax"]
    )
    refuses_in_process(r"keysift: --scores must be finite numbers", [KEYSIFT, "weigh", "--scores", "2;1"])


@pytest.mark.parametrize("text", ["2,x", "", "1,,2", "nan", "inf,1"])
def test_scores_that_are_not_numbers(text: str) -> None:
    from keysift.cli.verbs.weigh import numbers

    with refuses("--scores must be finite numbers separated by commas, got"):
        numbers("--scores", text)


def test_an_error_returns_2_in_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert _main(["mechanisms", "nothing"]) == 2
    assert capsys.readouterr().err.startswith("keysift: no mechanism is called 'nothing'")


def test_invalid_values_raise_and_unknown_flags_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    with refuses("seed must lie in 0"):
        parse(["generate", "run", "--prompt", "a", "--seed", "-1"])
    with pytest.raises(SystemExit):
        parse(["generate", "run", "--\x1b]0;title\x07"])
    output = capsys.readouterr().err
    assert "\x1b" not in output
    assert r"\x1b]0;title\x07" in output


def test_a_demo_keeps_the_run_of_an_earlier_one(tmp_path: Path) -> None:
    """A new demo does not overwrite the run of an earlier one, which can still be resumed."""
    paths = numbered(tmp_path / "demo-run")
    assert [next(paths).name for _ in range(3)] == ["demo-run", "demo-run-2", "demo-run-3"]
    for wrong in (float("nan"), float("inf"), -1.0):
        with refuses("--seconds must be a number of seconds"):
            demo.run(demo.Args(text=True, out=tmp_path / "x.html", seconds=wrong))
    with refuses("--seconds applies to keysift demo --text only"):
        demo.run(demo.Args(out=tmp_path / "x", seconds=1.0))
    with refuses("--steps does not apply to --text"):
        demo.run(demo.Args(text=True, steps=1))
    with refuses("--steps must be at least 1, got 0"):
        demo.run(demo.Args(out=tmp_path / "x", steps=0))


def test_an_operating_system_error_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    for redirected, code, output in ((">&-", 0, ""), (">/dev/full", 2, "No space left on device")):
        process = subprocess.run(f"{command} {redirected}", shell=True, check=False, capture_output=True, text=True)
        assert process.returncode == code, process.stderr
        assert output in process.stderr
        assert len(process.stderr.splitlines()) == (1 if output else 0), process.stderr


def test_an_interrupt_while_modules_load_prints_no_traceback(tmp_path: Path) -> None:
    """A module that the command line imports first sends the signal, as Ctrl-C within the first 0.1 s would."""
    (tmp_path / "tyro.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, "-m", "keysift", "presets"], check=False, capture_output=True, text=True, env=environment
    )
    assert process.returncode == -signal.SIGINT
    assert process.stderr == ""


def test_a_page_in_a_folder_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file" / "play.html", tmp_path / "folder" / "play.html"):
        assert _main(["play", "--no-open", "-o", str(out)]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"keysift: {out} cannot be written")
        assert "name a file in another folder with --out" in error
        monkeypatch.setattr("os.access", lambda *_: False)


def test_arguments_are_utf8_in_every_locale(tmp_path: Path) -> None:
    from keysift.data.tokenizers.bytes import Bytes
    from keysift.models.multiscreen import Multiscreen, MultiscreenConfig
    from keysift.models.save import save

    save(Multiscreen(MultiscreenConfig.psi(2, vocab_size=257)), tmp_path / "model")
    Bytes().save(tmp_path / "model")
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for command in (
        ["generate", "model", "--prompt", "é", "--echo", "--stop", "ü", "--max-new-tokens", "1"],
        ["inspect", "model", "--text", "été", "--diagnostics-only", "--record", "record.json"],
    ):
        process = subprocess.run(
            [sys.executable, "-m", "keysift", *command], check=False, capture_output=True, cwd=tmp_path, env=environment
        )
        assert process.returncode == 0, process.stderr
    assert "5 tokens" in process.stdout.decode()
    assert json.dumps("été")[1:-1] in (tmp_path / "record.json").read_text()


def test_weights_that_cancel_sum_to_exactly_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert _main(["weigh", "--scores", "2,1,0,0", "--mechanism", "heaviside_literal"]) == 0
    row = capsys.readouterr().out.splitlines()[-1].split()
    assert row[5] == "0", "the name, four weights, their sum"


def test_names_of_other_libraries_suggest_the_setting(tmp_path: Path) -> None:
    for name, setting in {"learning_rate": "lr", "batch_size": "batch_tokens", "n_layers": "depth"}.items():
        (tmp_path / "small.toml").write_text(f"{name} = 1\n")
        with refuses(f"there is no setting '{name}'; did you mean '{setting}'"):
            read_toml(tmp_path / "small.toml")
