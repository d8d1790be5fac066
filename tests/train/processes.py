"""Start, interrupt and kill training runs as separate processes."""

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
from keysift.train.settings import to_toml
from tests.forked_process import ForkedProcess

MAIN = ("-m", "keysift", "train", "--quiet")
ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def write_config(config: TrainConfig, path: Path) -> Path:
    """Write `config` as TOML. Returns `path`."""
    path.write_text(to_toml(config))
    return path


Process = subprocess.Popen[str] | ForkedProcess


def start(*flags: object, processes: int = 1, prefix: tuple[str, ...] = ()) -> Process:
    """Start `keysift train` with these flags: forked, or as a new process after `prefix` or under torchrun."""
    launch = [sys.executable]
    if processes > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    start_process = subprocess.Popen if prefix or processes > 1 else ForkedProcess
    return start_process(
        [*prefix, *launch, *MAIN, *map(str, flags)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment(),
    )


def finish(process: Process, code: int = 0, *, timeout: float = 300) -> str:
    """Wait for the process and check its exit code. Returns stderr."""
    try:
        _, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        kill(process)
        raise
    assert process.returncode == code, stderr[-3000:]
    return stderr


def send_ctrl_c(process: Process) -> None:
    """Send SIGINT to every process of the group, as a terminal does."""
    os.killpg(process.pid, signal.SIGINT)


def kill(process: Process) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def wait_for_steps(run: Path, count: int, process: Process) -> None:
    """Wait until the metrics have `count` lines or the process has ended."""
    deadline = time.monotonic() + 240
    while process.poll() is None and sum(1 for _ in read(run / "metrics.jsonl")) < count:
        assert time.monotonic() < deadline, "no new step within 240 seconds"
        time.sleep(0.02)


def partial_checkpoints(run: Path) -> list[Path]:
    """Checkpoints that are being written, or were when the process was killed."""
    return list((run / "checkpoints").glob(".step-*.writing"))


def pause_inside_checkpoint(run: Path, process: Process, rng: random.Random) -> None:
    """Stop the process while it writes a checkpoint, or return when it has ended.

    Writing takes milliseconds, so the folder is checked again after the process has stopped.
    """
    while process.poll() is None:
        if partial_checkpoints(run):
            time.sleep(rng.choice((0, 0.002, 0.01)))
            process.send_signal(signal.SIGSTOP)
            while process.poll() is None and Path(f"/proc/{process.pid}/stat").read_text().split()[2] != "T":
                time.sleep(0.001)
            if partial_checkpoints(run):
                return
            process.send_signal(signal.SIGCONT)
        time.sleep(0.0005)


def verify_checkpoints(run: Path) -> None:
    """Check the hashes of every checkpoint."""
    for step in layout.checkpoint_steps(run / "checkpoints"):
        checkpoint.verify(run / "checkpoints" / layout.checkpoint_name(step))
