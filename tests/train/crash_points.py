"""Kill a run with SIGKILL before its n-th change to the run directory, for every n, and resume it.

    python -m tests.train.crash_points config.toml FOLDER FIRST STRIDE

Python raises an audit event before each change to a file. A forked child counts the events in its run directory, and
the middle of every safetensors file, and kills itself at event n. A second child resumes the run. Its losses and
weights are compared with those of an uninterrupted run. Prints a JSON line for each n.
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
from keysift.train import checkpoint
from keysift.train.config import TrainConfig
from keysift.train.loop import train
from keysift.train.settings import read_toml
from tests.train.in_process import losses
from tests.train.processes import verify_checkpoints

_EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.truncate")


def run_forked(work: Callable[[], None]) -> int:
    """Run `work` in a forked child. Returns its exit code, or minus the signal that killed it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def watch_changes(folder: Path, on_change: Callable[[str], None]) -> None:
    """Call `on_change` before every change that this process makes in `folder`, from now on."""
    prefix = str(folder)

    def on_event(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _EVENTS or (event == "open" and not _opens_for_writing(arguments)):
            return
        target = arguments[1 if event in ("os.symlink", "os.link") else 0]
        path = os.fsdecode(target) if isinstance(target, str | bytes | os.PathLike) else ""
        # shutil.rmtree opens folders by file descriptor, so its events contain names without a path.
        if path.startswith(prefix) or (event in ("os.remove", "os.rmdir") and arguments[1] >= 0):
            on_change(f"{event} {path.removeprefix(prefix)}")

    sys.addaudithook(on_event)
    # safetensors writes without audit events, so its bytes are written from Python here, in two halves.
    for module in (save, checkpoint):
        module.save_file = partial(_save_in_halves, on_change)  # type: ignore[attr-defined]


def _save_in_halves(on_change: Callable[[str], None], tensors: Any, path: Path, metadata: Any = None) -> None:
    data = to_bytes(tensors, metadata)
    with Path(path).open("wb", buffering=0) as file:
        file.write(data[: len(data) // 2])
        on_change(f"second half of {path}")
        file.write(data[len(data) // 2 :])


def _opens_for_writing(arguments: tuple[Any, ...]) -> bool:
    flags = arguments[2]
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))


def kill_at(n: int, config: TrainConfig, run: Path) -> tuple[int, str]:
    """Train, and kill the process before change n. Returns the exit code and a description of the change."""
    change_file = run.with_suffix(".last")

    def work() -> None:
        count = 0

        def on_change(change: str) -> None:
            nonlocal count
            count += 1
            if count == n:
                change_file.write_text(change)
                os.kill(os.getpid(), signal.SIGKILL)

        watch_changes(run, on_change)
        train(config, run, show=False)

    code = run_forked(work)
    return code, change_file.read_text() if code else ""


def resume(config: TrainConfig, run: Path) -> None:
    """Finish the run, or start it if it was killed before its manifest was written."""
    if not (run / "train.json").exists():
        train(config, run, show=False)
        return
    try:
        train(None, run, resume=True, show=False)
    except ConfigError as error:  # killed after the last checkpoint: only its links were missing
        if "is finished" not in str(error):
            raise


def main(file: str, folder: str, first: str, stride: str) -> None:
    config, uninterrupted = read_toml(Path(file)), Path(folder, "uninterrupted")
    assert run_forked(lambda: _discard(train(config, uninterrupted, show=False))) == 0
    expected_losses, expected = losses(uninterrupted), keysift.load(uninterrupted).state_dict()
    n = int(first)
    while True:
        run = Path(folder, f"killed-{n}")
        code, change = kill_at(n, config, run)
        if code == 0:
            break  # there are fewer changes than n
        assert code == -signal.SIGKILL, code
        verify_checkpoints(run)
        for path in (run / "checkpoints").glob("step-*"):
            if (path / "manifest.json").exists():
                keysift.load(path)
        if (run / "train.json").exists() and summary(run).state == "finished":
            weights = keysift.load(run).state_dict()
            assert all(torch.equal(weights[name], expected[name]) for name in weights), (
                "the run is finished, but its model is older"
            )
        exit_code = run_forked(lambda run=run: resume(config, run))  # type: ignore[misc]
        weights = keysift.load(run).state_dict() if exit_code == 0 else {}
        equal = losses(run) == expected_losses and all(torch.equal(weights[name], expected[name]) for name in expected)
        sys.stdout.write(json.dumps({"n": n, "before": change, "exact": exit_code == 0 and equal}) + "\n")
        sys.stdout.flush()
        shutil.rmtree(run)
        n += int(stride)


def _discard(_: object) -> None: ...


if __name__ == "__main__":
    main(*sys.argv[1:])
