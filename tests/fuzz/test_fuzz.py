"""A short run of the fuzzer, and the fuzzer itself: each fault it looks for is one it can find."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import sandbox
from tests.fuzz.material import MARKER, payloads

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_sixty_cases_without_a_fault() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--cases", "60", "--seconds", "300", "--seed", "1"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def found(tmp_path: Path, command: object, *, writes: list[Path] | None = None, timeout: float = 20.0) -> list[str]:
    before = sandbox.state(tmp_path)
    ended = sandbox.run(command, tmp_path, timeout=timeout)  # type: ignore[arg-type]
    return sandbox.faults(ended, before, tmp_path, writes or [])


def test_a_good_command_has_no_fault(tmp_path: Path) -> None:
    def good() -> int:
        (tmp_path / "out").write_text("allowed")
        os.write(1, b"all is well\n")
        return 2

    assert found(tmp_path, good, writes=[tmp_path / "out"]) == []


def test_each_fault_is_seen(tmp_path: Path) -> None:
    def raises() -> int:
        raise ValueError("not caught")

    def escapes() -> int:
        os.write(1, b"\x1b]0;title\x07")
        return 0

    def touches() -> int:
        (tmp_path / "elsewhere").write_text("not asked for")
        return 0

    def unpickles() -> int:
        import pickle

        pickle.loads(payloads(tmp_path / MARKER)[0])
        return 0

    def hangs() -> int:
        while True:
            os.sched_yield()

    assert "traceback" in found(tmp_path, raises)
    assert found(tmp_path, escapes) == ["raw control byte b'\\x1b'"]
    assert any("touched" in fault for fault in found(tmp_path, touches))
    assert "ran a payload" in found(tmp_path, unpickles)
    assert found(tmp_path, hangs, timeout=1.0) == ["hung"]
