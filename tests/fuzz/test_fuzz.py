"""A short run of the fuzzer, and a test that it detects each kind of violation."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import sandbox
from tests.fuzz.inputs import MARKER, payloads

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_sixty_cases_have_no_violation() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--cases", "60", "--seconds", "300", "--seed", "1"]
    process = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert process.returncode == 0, process.stdout[-4000:] + process.stderr[-2000:]


def violations(
    tmp_path: Path, command: object, *, writes: list[Path] | None = None, timeout: float = 20.0
) -> list[str]:
    before = sandbox.state(tmp_path)
    result = sandbox.run(command, tmp_path, timeout=timeout)  # type: ignore[arg-type]
    return sandbox.find_violations(result, before, tmp_path, writes or [])


def test_a_correct_command_has_no_violation(tmp_path: Path) -> None:
    def good() -> int:
        (tmp_path / "out").write_text("allowed")
        os.write(1, b"all is well\n")
        return 2

    assert violations(tmp_path, good, writes=[tmp_path / "out"]) == []


def test_each_kind_of_violation_is_detected(tmp_path: Path) -> None:
    def raises() -> int:
        raise ValueError("not caught")

    def escapes() -> int:
        os.write(1, b"\x1b]0;title\x07")
        return 0

    def touches() -> int:
        (tmp_path / "elsewhere").write_text("not allowed")
        return 0

    def unpickles() -> int:
        import pickle

        pickle.loads(payloads(tmp_path / MARKER)[0])
        return 0

    def hangs() -> int:
        while True:
            os.sched_yield()

    assert "traceback" in violations(tmp_path, raises)
    assert violations(tmp_path, escapes) == ["raw control byte b'\\x1b'"]
    assert any("touched" in violation for violation in violations(tmp_path, touches))
    assert "ran a payload" in violations(tmp_path, unpickles)
    assert violations(tmp_path, hangs, timeout=1.0) == ["hung"]
