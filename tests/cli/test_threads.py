"""`--threads`, and what the command line settles before torch is imported."""

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
    done = subprocess.run([*DOCTOR, *flags], check=True, capture_output=True, text=True, env={**env, **environment})
    return json.loads(done.stdout)["threads"]


@pytest.mark.slow
def test_doctor_shows_what_was_settled_before_torch_was_imported() -> None:
    found = doctor("--threads", "1")
    assert found["torch_threads"] == 1
    assert found["waiting"] == "PASSIVE"
    assert found["usable"] == len(os.sched_getaffinity(0))
    assert {"quota", "busy", "load", "cores"} <= found.keys()


@pytest.mark.slow
def test_what_the_user_set_stays() -> None:
    found = doctor(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="ACTIVE")
    assert (found["torch_threads"], found["waiting"]) == (1, "ACTIVE")


def test_threads_is_read_anywhere_and_only_where_it_means_something() -> None:
    before = torch.get_num_threads()
    try:
        for argv in (["train", "--threads", "1", "--psi", "3"], ["--threads=1", "train", "--psi", "3"]):
            left, choice = choose_threads(argv)
            assert left == ["train", "--psi", "3"]
            assert choice is not None
            assert (choice.threads, choice.by) == (1, "--threads")
            assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert choose_threads(["runs"]) == (["runs"], None)
    with refuses("--threads is for verbs that compute"):
        choose_threads(["runs", "--threads", "1"])
    for wrong in (["train", "--threads"], ["train", "--threads", "two"], ["train", "--threads=-1"]):
        with refuses("--threads takes a number"):
            choose_threads(wrong)


def test_help_says_threads_once_and_with_each_verb_that_computes(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, times in ((["--help"], 1), (["check", "--help"], 1), (["train", "--help"], 1), (["runs", "--help"], 0)):
        with pytest.raises(SystemExit):
            cli.parse(argv)
        assert capsys.readouterr().out.count("--threads N") == times, argv


def test_verbs_are_read_without_torch() -> None:
    """Else the number of threads would come too late."""
    said = "import sys; from keysift.cli.main import parse; parse(['train']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", said], check=False).returncode == 0


def test_a_busy_machine_is_told_of_once_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(cli, "examine", lambda busy: Machine(cores=2, quota=None, busy=1.0, load=1.3))
    assert cli._main(["generate", "nowhere", "--prompt", "a"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("keysift: others keep 1.0 of 2 cores busy (load 1.3): computing with 1 thread")
    assert len(lines) == 2
