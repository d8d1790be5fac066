"""Training runs as real processes, started, interrupted and killed like a user's."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from keysift.runs import checkpoint, layout
from keysift.runs.metrics import read
from keysift.train.config import TrainConfig
from keysift.train.config_file import to_toml

MAIN = ("-m", "keysift", "train", "--quiet")
ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def toml(config: TrainConfig, path: Path) -> Path:
    path.write_text(to_toml(config))
    return path


def start(*flags: object, processes: int = 1, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    launch = [sys.executable]
    if processes > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return subprocess.Popen(
        [*before, *launch, *MAIN, *map(str, flags)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment(),
    )


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    try:
        _, said = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        kill(process)
        raise
    assert process.returncode == code, said[-3000:]
    return said


def press_control_c(process: subprocess.Popen[str]) -> None:
    """What a terminal does: every process of the group gets the signal."""
    os.killpg(process.pid, signal.SIGINT)


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def wait_for_steps(run: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Until the metrics hold `count` lines or the process has ended."""
    deadline = time.monotonic() + 240
    while process.poll() is None and sum(1 for _ in read(run / "metrics.jsonl")) < count:
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(0.02)


def half_written(run: Path) -> list[Path]:
    return list((run / "checkpoints").glob(".step-*.writing"))


def pause_while_writing(run: Path, process: subprocess.Popen[str], chance: random.Random) -> None:
    """Until the process stands still inside a half-written checkpoint, or has ended.

    A checkpoint takes milliseconds, so whether one is under way is looked at once more while nothing moves.
    """
    while process.poll() is None:
        if half_written(run):
            time.sleep(chance.choice((0, 0.002, 0.01)))
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            if half_written(run):
                return
            process.send_signal(signal.SIGCONT)
        time.sleep(0.0005)


def all_readable(run: Path) -> None:
    for step in layout.steps(run / "checkpoints"):
        checkpoint.verify(run / "checkpoints" / layout.name_of(step))
