"""Runs survive SIGKILL, signals, a full disk and a read-only directory."""

import json
import os
import random
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import keysift
from keysift.runs import layout
from keysift.runs.summary import summary
from keysift.train import signals
from keysift.train.config import TrainConfig
from keysift.train.loop import train
from tests.train.in_process import losses
from tests.train.processes import (
    ROOT,
    Process,
    environment,
    finish,
    kill,
    partial_checkpoints,
    pause_inside_checkpoint,
    send_ctrl_c,
    start,
    verify_checkpoints,
    wait_for_steps,
    write_config,
)

SOAK = bool(os.environ.get("SOAK"))


def soak_only(*values: object) -> pytest.ParameterSet:
    """Parameters that run only in `make soak`. A shorter version of the test always runs."""
    return pytest.param(*values, marks=pytest.mark.skipif(not SOAK, reason="runs in `make soak`"))


@pytest.mark.slow
@pytest.mark.parametrize("kills", [4, soak_only(30)])
def test_sigkill_at_random_moments(tiny: TrainConfig, tmp_path: Path, kills: int) -> None:
    """Half of the kills happen while a checkpoint is written, which leaves a partial checkpoint."""
    config = replace(tiny, steps=20 * kills, save_every=2, sample_tokens=0)
    uninterrupted = tmp_path / "uninterrupted"
    train(config, uninterrupted, show=False)
    run, file = tmp_path / "run", write_config(config, tmp_path / "config.toml")
    rng = random.Random(kills)
    killed = while_saving = 0
    for attempt in range(kills):
        process = start("--config", file, "--out", run) if attempt == 0 else start("--resume", run)
        saved_steps = layout.checkpoint_steps(run / "checkpoints")
        wait_for_steps(run, (saved_steps[-1] if saved_steps else 0) + 1, process)
        time.sleep(rng.uniform(0, 0.2))
        if attempt % 2:
            pause_inside_checkpoint(run, process, rng)
        killed += process.poll() is None
        kill(process)
        while_saving += bool(partial_checkpoints(run))
        verify_checkpoints(run)
        if layout.checkpoint_steps(run / "checkpoints"):
            keysift.load(run / "checkpoints" / layout.checkpoint_name(layout.checkpoint_steps(run / "checkpoints")[-1]))
    assert killed == kills, "every process was running when it was killed"
    assert while_saving >= kills // 2, "half of them were writing a checkpoint"
    finish(start("--resume", run))
    assert losses(run) == losses(uninterrupted)
    ours, theirs = keysift.load(run).state_dict(), keysift.load(uninterrupted).state_dict()
    assert all(bool((ours[name] == theirs[name]).all()) for name in theirs)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "stride"), [(7, 13), soak_only(1, 1)])
def test_sigkill_before_every_change_to_the_directory(
    tiny: TrainConfig, tmp_path: Path, first: int, stride: int
) -> None:
    config = replace(tiny, steps=6, save_every=2, keep_last=1, keep_best=False)
    file = write_config(config, tmp_path / "config.toml")
    command = [sys.executable, "-m", "tests.train.crash_points", file, tmp_path, str(first), str(stride)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), cwd=ROOT)
    assert process.returncode == 0, process.stderr[-3000:]
    points = [json.loads(line) for line in process.stdout.splitlines()]
    assert [point for point in points if not point["exact"]] == []
    # Three checkpoints are written and two removed. Each has tensors, model, manifest, rename and link.
    assert sum(".writing" in point["before"] for point in points) >= 39 // stride
    assert len(points) >= 100 // stride


@pytest.mark.slow
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_a_checkpoint_and_exits(
    tiny: TrainConfig, tmp_path: Path, signal_number: signal.Signals
) -> None:
    config = replace(tiny, steps=100_000, save_every=100_000, sample_tokens=0)
    process = start("--config", write_config(config, tmp_path / "config.toml"), "--out", tmp_path / "run")
    wait_for_steps(tmp_path / "run", 2, process)
    process.send_signal(signal_number)
    finish(process)
    assert summary(tmp_path / "run").state == "stopped"
    before = losses(tmp_path / "run")
    assert layout.checkpoint_steps(tmp_path / "run" / "checkpoints") == [len(before)]
    steps = len(before) + 3
    finish(start("--resume", tmp_path / "run", "--steps", steps))
    assert losses(tmp_path / "run")[: len(before)] == before
    assert len(losses(tmp_path / "run")) == steps


@pytest.mark.slow
def test_a_run_under_nohup_ignores_sighup(tiny: TrainConfig, tmp_path: Path) -> None:
    config = replace(tiny, steps=200, save_every=200, sample_tokens=0)
    file, run = write_config(config, tmp_path / "config.toml"), tmp_path / "run"
    process = start("--config", file, "--out", run, prefix=("nohup",))
    wait_for_steps(run, 2, process)
    assert process.poll() is None
    process.send_signal(signal.SIGHUP)
    finish(process)
    assert summary(run).state == "finished"


@pytest.mark.slow
def test_an_interrupted_run_prints_the_resume_command(tiny: TrainConfig, tmp_path: Path) -> None:
    config = replace(tiny, steps=100_000, save_every=100_000, sample_tokens=0)
    run = tmp_path / "a run"
    file = write_config(config, tmp_path / "config.toml")
    command = [sys.executable, "-m", "keysift", "train", "--config", file, "--out", run]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment())
    wait_for_steps(run, 2, process)
    process.send_signal(signal.SIGINT)
    stderr = finish(process)
    (line,) = [line for line in stderr.splitlines() if line.startswith("resume with: ")]
    arguments = shlex.split(line.removeprefix("resume with: keysift "))
    subprocess.run([sys.executable, "-m", "keysift", *arguments, "--steps", str(len(losses(run)) + 1)], check=True)


@pytest.mark.slow
def test_a_closed_stderr_pipe_does_not_stop_a_run(tiny: TrainConfig, tmp_path: Path) -> None:
    config = replace(tiny, steps=40, save_every=2, sample_tokens=0)
    file = write_config(config, tmp_path / "config.toml")
    command = [sys.executable, "-m", "keysift", "train", "--config", file, "--out", tmp_path / "run"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment())
    assert process.stderr is not None
    process.stderr.readline()
    process.stderr.close()
    assert process.wait(120) == 0
    assert len(losses(tmp_path / "run")) == 40


@pytest.mark.slow
@pytest.mark.parametrize("interrupt", [send_ctrl_c, subprocess.Popen.terminate], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_under_torchrun_saves_a_checkpoint_and_exits(
    tiny: TrainConfig, tmp_path: Path, interrupt: Callable[[Process], None]
) -> None:
    """With Ctrl-C every process gets two signals: from the terminal and from torchrun."""
    config = replace(tiny, steps=100_000, save_every=100_000, sample_tokens=0)
    process = start("--config", write_config(config, tmp_path / "config.toml"), "--out", tmp_path / "run", processes=2)
    wait_for_steps(tmp_path / "run", 2, process)
    interrupt(process)
    process.communicate(timeout=60)
    steps = losses(tmp_path / "run")
    assert layout.checkpoint_steps(tmp_path / "run" / "checkpoints") == [len(steps)]
    verify_checkpoints(tmp_path / "run")


# The keysift command. It creates a file when its signal handler is installed, and one when a signal arrives.
REPORT_SIGNALS = """
import sys
from pathlib import Path
from keysift.cli.main import main
from keysift.train.signals import StopRequest
enter, handle = StopRequest.__enter__, StopRequest._handle
def listening(self):
    enter(self)
    Path(sys.argv[1], "listening").touch()
    return self
def signalled(self, number, frame):
    try:
        handle(self, number, frame)
    finally:
        Path(sys.argv[1], "signalled").touch()
StopRequest.__enter__, StopRequest._handle = listening, signalled
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.slow
def test_a_second_ctrl_c_exits_at_once(tiny: TrainConfig, tmp_path: Path) -> None:
    """The step takes minutes. No checkpoint is saved, and the run directory stays valid."""
    config = replace(tiny, steps=1, batch_tokens=16 * 20_000, micro_tokens=16)
    file = write_config(config, tmp_path / "config.toml")
    arguments = ["train", "--quiet", "--config", file, "--out", tmp_path / "run"]
    process = subprocess.Popen(
        [sys.executable, "-c", REPORT_SIGNALS, str(tmp_path), *map(str, arguments)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment(),
    )

    def wait_until(file: str) -> None:
        while not (tmp_path / file).exists():
            assert process.poll() is None, finish(process)
            time.sleep(0.05)

    wait_until("listening")
    send_ctrl_c(process)
    # On a busy machine a signal can arrive long after it was sent, so the process reports it.
    wait_until("signalled")
    time.sleep(signals.SAME_REQUEST_SECONDS + 0.1)
    assert process.poll() is None, "after one signal the step is completed"
    send_ctrl_c(process)
    finish(process, code=130)
    assert layout.checkpoint_steps(tmp_path / "run" / "checkpoints") == []


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A mounted file system of 8 MB."""
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(mount_point)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a file system; the test with a file size limit runs instead")
    yield mount_point
    subprocess.run(["umount", mount_point], check=True)


def fill(folder: Path) -> Path:
    """Write until the disk is full. Returns the file to delete."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler


@pytest.mark.slow
def test_a_full_disk_keeps_the_previous_checkpoint(tiny: TrainConfig, disk: Path, tmp_path: Path) -> None:
    config = replace(tiny, steps=100_000, save_every=5, sample_tokens=0)
    process = start("--config", write_config(config, tmp_path / "config.toml"), "--out", disk / "run")
    wait_for_steps(disk / "run", 8, process)
    filler = fill(disk)
    stderr = finish(process, code=2)
    assert "No space left on device" in stderr
    check_resume(disk / "run", stderr, free_space=filler.unlink)


@pytest.mark.slow
def test_a_file_size_limit_keeps_the_previous_checkpoint(tiny: TrainConfig, tmp_path: Path) -> None:
    config = replace(tiny, steps=100_000, save_every=5, sample_tokens=0)
    process = start("--config", write_config(config, tmp_path / "config.toml"), "--out", tmp_path / "run")
    wait_for_steps(tmp_path / "run", 8, process)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1024, 1024))
    check_resume(tmp_path / "run", finish(process, code=2))


def check_resume(run: Path, stderr: str, free_space: Callable[[], None] = lambda: None) -> None:
    """Check that the previous checkpoint is intact and that the run resumes from it after `free_space`."""
    assert "failed" in stderr
    assert "free some space" in stderr
    assert "Traceback" not in stderr
    verify_checkpoints(run)
    last_saved = layout.checkpoint_steps(run / "checkpoints")[-1]
    free_space()
    finish(start("--resume", run, "--steps", last_saved + 2))
    assert len(losses(run)) == last_saved + 2


@pytest.mark.slow
def test_a_read_only_directory_keeps_the_previous_checkpoint(tiny: TrainConfig, tmp_path: Path) -> None:
    # Root ignores file permissions unless it drops the capability.
    drop_override = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
    if drop_override and shutil.which(drop_override[0]) is None:
        pytest.skip("root ignores file permissions, and setpriv is not installed")
    config = replace(tiny, steps=100_000, save_every=5, sample_tokens=0)
    run = tmp_path / "run"
    process = start("--config", write_config(config, tmp_path / "config.toml"), "--out", run, prefix=drop_override)
    wait_for_steps(run, 8, process)
    (run / "checkpoints").chmod(0o555)
    stderr = finish(process, code=2)
    (run / "checkpoints").chmod(0o755)
    assert "saving step" in stderr
    assert "is intact" in stderr
    verify_checkpoints(run)
    last_saved = layout.checkpoint_steps(run / "checkpoints")[-1]
    finish(start("--resume", run, "--steps", last_saved + 2))
    assert len(losses(run)) == last_saved + 2
