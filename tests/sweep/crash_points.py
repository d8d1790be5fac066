"""Kill a sweep and its runs with SIGKILL before the n-th change to its folder, for every n.

    python -m tests.sweep.crash_points TEXT FOLDER FIRST STRIDE

Runs are forked instead of started as new programs, so that their changes are counted too (see
tests/train/crash_points.py). The sweep and its runs share one counter. All of them are killed at once, as in a power
failure. Then the same command runs again, and every run must equal that of an uninterrupted sweep. Prints one JSON line
for each n.
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
from keysift.sweep import drive, launch
from tests.train.crash_points import run_forked, watch_changes
from tests.train.in_process import losses
from tests.train.processes import verify_checkpoints

FLAGS = ("--over", "seed=0,1", "--psi", "2", "--context", "16", "--batch-tokens", "32", "--steps", "2")
MORE = ("--save-every", "1", "--keep-last", "1", "--val-sequences", "2", "--sample-tokens", "0", "--quiet")


class Forked:
    """The part of subprocess.Popen that `launch` uses, for a run in a forked copy of this process."""

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


def sweep(text: str, out: Path, before_change: Callable[[str], None] | None = None) -> None:
    """Run the sweep command in its own process group. `before_change` is called before every change to `out`."""
    os.setpgid(0, 0)
    launch.subprocess, drive._POLL = SimpleNamespace(Popen=Forked), 0.01  # type: ignore[attr-defined, assignment]
    if before_change is not None:
        watch_changes(out, before_change)
    with Path(os.devnull).open("w") as sys.stdout:
        assert _main(["sweep", "--out", str(out), "--data", text, *FLAGS, *MORE]) == 0


def kill_before_change(n: int, text: str, out: Path) -> tuple[int, str]:
    """Kill the sweep and its active runs before the n-th change. Returns the exit code and the change."""
    count, last_change = mmap.mmap(-1, 8), out.with_suffix(".last")

    def before_change(change: str) -> None:
        # The sweep only reads while a run is active, so two processes never count at the same time.
        count[:] = (int.from_bytes(count) + 1).to_bytes(8)
        if int.from_bytes(count) == n:
            last_change.write_text(change)
            os.killpg(0, signal.SIGKILL)

    code = run_forked(partial(sweep, text, out, before_change))
    return code, last_change.read_text() if code else ""


def main(text: str, folder: str, first: str, stride: str) -> None:
    uninterrupted, n = Path(folder, "uninterrupted"), int(first)
    assert run_forked(partial(sweep, text, uninterrupted)) == 0
    expected = {run.name: (losses(run), keysift.load(run).state_dict()) for run in find_runs(uninterrupted)}
    while True:
        out = Path(folder, f"killed-{n}")
        code, change = kill_before_change(n, text, out)
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
        resumed_code = run_forked(partial(sweep, text, out))
        exact = resumed_code == 0 and all(_same(out / name, *result) for name, result in expected.items())
        left = sorted(path.name for path in out.iterdir() if not (uninterrupted / path.name).exists())
        sys.stdout.write(json.dumps({"n": n, "before": change, "exact": exact, "left": left}) + "\n")
        sys.stdout.flush()
        shutil.rmtree(out, ignore_errors=True)
        n += int(stride)


def _same(run: Path, loss: list[float], weights: dict[str, torch.Tensor]) -> bool:
    result = keysift.load(run).state_dict()
    return losses(run) == loss and all(torch.equal(result[name], weights[name]) for name in weights)


if __name__ == "__main__":
    main(*sys.argv[1:])
