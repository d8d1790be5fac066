"""`--threads`, and settings that are made before torch is imported."""

import json
import os
import subprocess
import sys

import pytest
import torch

from keysift.cli import main as cli
from keysift.cli.main import choose_threads
from keysift.core.threads import Machine
from tests.refusals import refuses

DOCTOR = [sys.executable, "-c", "from keysift.cli.main import main; main()", "doctor", "--json"]


def doctor(*flags: str, **environment: str) -> dict[str, object]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "KMP_", "GOMP_"))}
    process = subprocess.run([*DOCTOR, *flags], check=True, capture_output=True, text=True, env={**env, **environment})
    return json.loads(process.stdout)["threads"]


@pytest.mark.slow
def test_doctor_shows_thread_settings() -> None:
    result = doctor("--threads", "1")
    assert result["torch_threads"] == 1
    assert result["waiting"] == "PASSIVE"
    assert result["usable"] == len(os.sched_getaffinity(0))
    assert {"quota", "busy", "load", "cores"} <= result.keys()


@pytest.mark.slow
def test_environment_variables_take_precedence() -> None:
    result = doctor(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="ACTIVE")
    assert (result["torch_threads"], result["waiting"]) == (1, "ACTIVE")


def test_threads_flag_positions_and_verbs() -> None:
    before = torch.get_num_threads()
    try:
        for argv in (["train", "--threads", "1", "--psi", "3"], ["--threads=1", "train", "--psi", "3"]):
            remaining, choice = choose_threads(argv)
            assert remaining == ["train", "--psi", "3"]
            assert choice is not None
            assert (choice.threads, choice.by) == (1, "--threads")
            assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert choose_threads(["runs"]) == (["runs"], None)
    with refuses("--threads applies to check, train"):
        choose_threads(["runs", "--threads", "1"])
    for wrong in (["train", "--threads"], ["train", "--threads", "two"], ["train", "--threads=-1"]):
        with refuses("--threads takes a number"):
            choose_threads(wrong)


def test_help_lists_threads_once_for_verbs_that_compute(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, times in ((["--help"], 1), (["check", "--help"], 1), (["train", "--help"], 1), (["runs", "--help"], 0)):
        with pytest.raises(SystemExit):
            cli.parse(argv)
        assert capsys.readouterr().out.count("--threads N") == times, argv


def test_arguments_are_parsed_without_torch() -> None:
    """The number of threads must be set before torch is imported."""
    code = "import sys; from keysift.cli.main import parse; parse(['train']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_busy_machine_is_reported_once_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(cli, "examine", lambda busy: Machine(cores=2, quota=None, busy=1.0, load=1.3))
    assert cli._main(["generate", "nowhere", "--prompt", "a"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("keysift: other processes keep 1.0 of 2 cores busy (load 1.3): using 1 thread")
    assert len(lines) == 2
