"""One command in a process of its own behind a pseudo-terminal, and everything it may not do."""

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

from tests.fuzz.material import MARKER

ALLOWED_EXITS = (0, 1, 2, 130)
RAW = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@dataclass(frozen=True)
class Ended:
    code: int
    said: bytes
    seconds: float


def run(command: Callable[[], int], cwd: Path, *, timeout: float) -> Ended:
    """`command` in a forked child; torch is imported already, so a case takes milliseconds."""
    began = time.monotonic()
    child, terminal = pty.fork()
    if child == 0:
        code = 99
        try:
            os.chdir(cwd)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # nobody types an answer
            # The parent's streams may be files with something still in them.
            sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, "r" if n == 0 else "w", closefd=False) for n in range(3))
            code = command()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    said = b""
    while time.monotonic() - began < timeout:
        ready, _, _ = select.select([terminal], [], [], 0.5)
        if not ready:
            continue
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        said += piece
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)
        return Ended(-1, said, time.monotonic() - began)
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    return Ended(os.waitstatus_to_exitcode(status), said, time.monotonic() - began)


def state(folder: Path) -> dict[str, tuple[int, int]]:
    """Every name with its size and time of change; links are not followed."""
    found = {}
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(root, name)
            told = os.lstat(path)
            found[path] = (told.st_size if name in files else 0, told.st_mtime_ns if name in files else 0)
    return found


def faults(ended: Ended, before: dict[str, tuple[int, int]], watched: Path, may_write: list[Path]) -> list[str]:
    """What the command did that nothing may make it do."""
    found = []
    if ended.code == -1:
        found.append("hung")
    elif ended.code not in ALLOWED_EXITS:
        found.append(f"exit code {ended.code}")
    if b"Traceback (most recent call last)" in ended.said:
        found.append("traceback")
    if RAW.search(ended.said):
        found.append(f"raw control byte {RAW.search(ended.said).group()!r}")  # type: ignore[union-attr]
    after = state(watched)
    for path in before.keys() | after.keys():
        inside = any(Path(path) == place or place in Path(path).parents for place in may_write)
        if before.get(path) != after.get(path) and not inside:
            found.append(f"touched {path}")
    if (watched / MARKER).exists():
        found.append("ran a payload")
        (watched / MARKER).unlink()
    return found
