"""Kill -9 before the n-th thing a sweep, or a run it started, does to its folder, for every n.

    python -m tests.sweep.crash_points TEXT FOLDER FIRST STRIDE

Runs are forked, not started anew, so that what they do is heard too (see tests/train/crash_points.py); one counter is
shared by the sweep and its runs. All of them die at once, as when a machine goes down, and the same command is given
again: every run must be what it is in a sweep nobody disturbed. Prints one JSON line for each n.
"""

import json
import mmap
import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import GenericAlias, SimpleNamespace
from typing import Any

import torch

import keysift
from keysift.cli.main import _main
from keysift.runs.summary import find_runs, summary
from keysift.sweep import child as runs
from keysift.sweep import drive
from tests.train.crash_points import run_forked, watch_changes
from tests.train.in_process import losses
from tests.train.processes import verify_checkpoints

FLAGS = ("--over", "seed=0,1", "--psi", "2", "--context", "16", "--batch-tokens", "32", "--steps", "2")
MORE = ("--save-every", "1", "--keep-last", "1", "--val-sequences", "2", "--sample-tokens", "0", "--quiet")


class Forked:
    """What `drive` uses of a process, for a run that is a copy of this process."""

    __class_getitem__ = classmethod(GenericAlias)

    def __init__(self, command: list[str], **_: Any) -> None:
        self._code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                code = runs.main(*command[4:])
            finally:
                os._exit(code)

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


def sweep(text: str, out: Path, see: Callable[[str], None] | None = None) -> None:
    """As a user gives it, in a process group of its own; `see` hears of every change to `out` beforehand."""
    os.setpgid(0, 0)
    drive.subprocess, drive._POLL = SimpleNamespace(Popen=Forked), 0.01  # type: ignore[attr-defined, assignment]
    if see is not None:
        watch_changes(out, see)
    with Path(os.devnull).open("w") as sys.stdout:
        assert _main(["sweep", "--out", str(out), "--data", text, *FLAGS, *MORE]) == 0


def killed_at(n: int, text: str, out: Path) -> tuple[int, str]:
    """Die before the n-th change, the runs at work with the sweep; how it ended, and what that change was."""
    count, told = mmap.mmap(-1, 8), out.with_suffix(".last")

    def see(what: str) -> None:
        # The sweep only reads while a run is at work: no two count at a time.
        count[:] = (int.from_bytes(count) + 1).to_bytes(8)
        if int.from_bytes(count) == n:
            told.write_text(what)
            os.killpg(0, signal.SIGKILL)

    code = run_forked(partial(sweep, text, out, see))
    return code, told.read_text() if code else ""


def main(text: str, folder: str, first: str, stride: str) -> None:
    whole, n = Path(folder, "whole"), int(first)
    assert run_forked(partial(sweep, text, whole)) == 0
    wanted = {run.name: (losses(run), keysift.load(run).state_dict()) for run in find_runs(whole)}
    while True:
        out = Path(folder, f"killed-{n}")
        code, what = killed_at(n, text, out)
        if code == 0:
            break  # there are fewer changes than n
        assert code == -signal.SIGKILL, code
        for run in find_runs(out):
            summary(run)
            verify_checkpoints(run)
            if (run / "model.safetensors").exists():
                keysift.load(run)
        for name in ("sweep.json", "sweep.html"):
            assert not (out / name).exists() or (out / name).stat().st_size, name
        ended = run_forked(partial(sweep, text, out))
        exact = ended == 0 and all(_same(out / name, *result) for name, result in wanted.items())
        left = sorted(path.name for path in out.iterdir() if not (whole / path.name).exists())
        sys.stdout.write(json.dumps({"n": n, "before": what, "exact": exact, "left": left}) + "\n")
        sys.stdout.flush()
        shutil.rmtree(out, ignore_errors=True)
        n += int(stride)


def _same(run: Path, loss: list[float], weights: dict[str, torch.Tensor]) -> bool:
    result = keysift.load(run).state_dict()
    return losses(run) == loss and all(torch.equal(result[name], weights[name]) for name in weights)


if __name__ == "__main__":
    main(*sys.argv[1:])
