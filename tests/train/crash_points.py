"""Kill -9 before the n-th thing a run does to its directory, for every n: no moment of a save is left to chance.

    python -m tests.train.crash_points config.toml FOLDER FIRST STRIDE

Python announces what it is about to do to files (audit events); a forked child counts those in its run directory, and
the middle of every safetensors file, and kills itself at the n-th. A second child resumes, and its losses and
weights are compared with an undisturbed run's. Prints one JSON line for each n.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_bytes

import keysift
from keysift.core.errors import ConfigError
from keysift.models import save
from keysift.runs.summary import summary
from keysift.train import shards
from keysift.train.config import TrainConfig
from keysift.train.config_file import read_toml
from keysift.train.loop import train
from tests.train.in_process import losses
from tests.train.processes import all_readable

_EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.truncate")


def child(work: Callable[[], None]) -> int:
    """How a forked child that does this work ended: its exit code, or minus the signal that killed it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def watch(run: Path, see: Callable[[str], None]) -> None:
    """Tell `see` of everything this process is about to change in `run`, from now on."""
    inside = str(run)

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _EVENTS or (event == "open" and not _writes(arguments)):
            return
        place = arguments[1 if event in ("os.symlink", "os.link") else 0]
        path = os.fsdecode(place) if isinstance(place, str | bytes | os.PathLike) else ""
        # shutil.rmtree goes down a tree by handles and names what it finds there without the way to it.
        if path.startswith(inside) or (event in ("os.remove", "os.rmdir") and arguments[1] >= 0):
            see(f"{event} {path.removeprefix(inside)}")

    sys.addaudithook(hear)
    # safetensors writes without telling Python: here its bytes are written by Python, in two halves.
    for module in (save, shards):
        module.save_file = partial(_in_halves, see)  # type: ignore[attr-defined]


def _in_halves(see: Callable[[str], None], tensors: Any, path: Path, metadata: Any = None) -> None:
    data = to_bytes(tensors, metadata)
    with Path(path).open("wb", buffering=0) as file:
        file.write(data[: len(data) // 2])
        see(f"second half of {path}")
        file.write(data[len(data) // 2 :])


def _writes(arguments: tuple[Any, ...]) -> bool:
    flags = arguments[2]
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))


def killed_at(n: int, config: TrainConfig, run: Path) -> tuple[int, str]:
    """Train, and die before the n-th change; how it ended, and what that change was."""
    told = run.with_suffix(".last")

    def work() -> None:
        count = 0

        def see(what: str) -> None:
            nonlocal count
            count += 1
            if count == n:
                told.write_text(what)
                os.kill(os.getpid(), signal.SIGKILL)

        watch(run, see)
        train(config, run, show=False)

    code = child(work)
    return code, told.read_text() if code else ""


def go_on(config: TrainConfig, run: Path) -> None:
    if not (run / "train.json").exists():
        train(config, run, show=False)
        return
    try:
        train(None, run, resume=True, show=False)
    except ConfigError as error:  # killed after the last checkpoint, so all that was left to do were its links
        if "is finished" not in str(error):
            raise


def main(file: str, folder: str, first: str, stride: str) -> None:
    config, whole = read_toml(Path(file)), Path(folder, "whole")
    assert child(lambda: _discard(train(config, whole, show=False))) == 0
    wanted = losses(whole), keysift.load(whole).state_dict()
    n = int(first)
    while True:
        run = Path(folder, f"killed-{n}")
        code, what = killed_at(n, config, run)
        if code == 0:
            break  # there are fewer changes than n
        assert code == -signal.SIGKILL, code
        all_readable(run)
        for path in (run / "checkpoints").glob("step-*"):
            if (path / "manifest.json").exists():
                keysift.load(path)
        if (run / "train.json").exists() and summary(run).state == "finished":
            found = keysift.load(run).state_dict()
            assert all(torch.equal(found[name], wanted[1][name]) for name in found), "finished, with an older model"
        ended = child(lambda run=run: go_on(config, run))  # type: ignore[misc]
        weights = keysift.load(run).state_dict() if ended == 0 else {}
        equal = losses(run) == wanted[0] and all(torch.equal(weights[name], wanted[1][name]) for name in wanted[1])
        sys.stdout.write(json.dumps({"n": n, "before": what, "exact": ended == 0 and equal}) + "\n")
        sys.stdout.flush()
        shutil.rmtree(run)
        n += int(stride)


def _discard(_: object) -> None: ...


if __name__ == "__main__":
    main(*sys.argv[1:])
