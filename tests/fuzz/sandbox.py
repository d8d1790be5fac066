"""Run a command in a forked process behind a pseudo-terminal, and list what it did wrong."""

import os
import pty
import re
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.inputs import MARKER

ALLOWED_EXITS = (0, 1, 2, 130)
RAW = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@dataclass(frozen=True)
class Result:
    """Exit code (-1 after a timeout), output and duration of a command."""

    code: int
    output: bytes
    seconds: float


def run(command: Callable[[], int], cwd: Path, *, timeout: float) -> Result:
    """Run `command` in a forked child. torch is already imported, so a case takes milliseconds."""
    start = time.monotonic()
    child, terminal = pty.fork()
    if child == 0:
        code = 99
        try:
            os.chdir(cwd)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # no input
            # The parent's streams may be files with buffered output.
            sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, "r" if n == 0 else "w", closefd=False) for n in range(3))
            code = command()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    output = b""
    while time.monotonic() - start < timeout:
        ready, _, _ = select.select([terminal], [], [], 0.5)
        if not ready:
            continue
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        output += piece
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)
        return Result(-1, output, time.monotonic() - start)
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    return Result(os.waitstatus_to_exitcode(status), output, time.monotonic() - start)


def state(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and modification time of every path in `folder`. Links are not followed."""
    paths = {}
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(root, name)
            status = os.lstat(path)
            paths[path] = (status.st_size if name in files else 0, status.st_mtime_ns if name in files else 0)
    return paths


def find_violations(
    result: Result, before: dict[str, tuple[int, int]], folder: Path, may_write: list[Path]
) -> list[str]:
    """List violations: hang, bad exit code, traceback, control bytes, writes outside `may_write`, executed payload."""
    violations = []
    if result.code == -1:
        violations.append("hung")
    elif result.code not in ALLOWED_EXITS:
        violations.append(f"exit code {result.code}")
    if b"Traceback (most recent call last)" in result.output:
        violations.append("traceback")
    if RAW.search(result.output):
        violations.append(f"raw control byte {RAW.search(result.output).group()!r}")  # type: ignore[union-attr]
    after = state(folder)
    for path in before.keys() | after.keys():
        inside = any(Path(path) == allowed or allowed in Path(path).parents for allowed in may_write)
        if before.get(path) != after.get(path) and not inside:
            violations.append(f"touched {path}")
    if (folder / MARKER).exists():
        violations.append("ran a payload")
        (folder / MARKER).unlink()
    return violations
