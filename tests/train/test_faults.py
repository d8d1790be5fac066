"""What befalls a run in the world: kill -9, signals, a full disk, a directory nobody may write to."""

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
    all_readable,
    environment,
    finish,
    half_written,
    kill,
    pause_while_writing,
    press_control_c,
    start,
    toml,
    wait_for_steps,
)

SOAK = bool(os.environ.get("SOAK"))


def longer(*values: object) -> pytest.ParameterSet:
    """The full length of a test of which a short version always runs."""
    return pytest.param(*values, marks=pytest.mark.skipif(not SOAK, reason="its full length runs in `make soak`"))


@pytest.mark.slow
@pytest.mark.parametrize("kills", [4, longer(30)])
def test_kill_nine_at_random_moments(tiny: TrainConfig, tmp_path: Path, kills: int) -> None:
    """Half of the kills fall inside a checkpoint; what they leave half-written shows that they did."""
    config = replace(tiny, steps=20 * kills, save_every=2, sample_tokens=0)
    whole = tmp_path / "whole"
    train(config, whole, show=False)
    run, file = tmp_path / "run", toml(config, tmp_path / "config.toml")
    chance = random.Random(kills)
    killed = within = 0
    for attempt in range(kills):
        process = start("--config", file, "--out", run) if attempt == 0 else start("--resume", run)
        known = layout.steps(run / "checkpoints")
        wait_for_steps(run, (known[-1] if known else 0) + 1, process)
        time.sleep(chance.uniform(0, 0.2))
        if attempt % 2:
            pause_while_writing(run, process, chance)
        killed += process.poll() is None
        kill(process)
        within += bool(half_written(run))
        all_readable(run)
        if layout.steps(run / "checkpoints"):
            keysift.load(run / "checkpoints" / layout.name_of(layout.steps(run / "checkpoints")[-1]))
    assert killed == kills, "every process was alive when it was killed"
    assert within >= kills // 2, "and half of them were writing a checkpoint"
    finish(start("--resume", run))
    assert losses(run) == losses(whole)
    ours, theirs = keysift.load(run).state_dict(), keysift.load(whole).state_dict()
    assert all(bool((ours[name] == theirs[name]).all()) for name in theirs)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "stride"), [(7, 13), longer(1, 1)])
def test_kill_nine_before_every_change_to_the_directory(
    tiny: TrainConfig, tmp_path: Path, first: int, stride: int
) -> None:
    config = replace(tiny, steps=6, save_every=2, keep_last=1, keep_best=False)
    file = toml(config, tmp_path / "config.toml")
    command = [sys.executable, "-m", "tests.train.crash_points", file, tmp_path, str(first), str(stride)]
    said = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), cwd=ROOT)
    assert said.returncode == 0, said.stderr[-3000:]
    points = [json.loads(line) for line in said.stdout.splitlines()]
    assert [point for point in points if not point["exact"]] == []
    # Three checkpoints are written and two removed; in each, tensors, the model, the manifest, the rename, the link.
    assert sum(".writing" in point["before"] for point in points) >= 39 // stride
    assert len(points) >= 100 // stride


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_leaves(tiny: TrainConfig, tmp_path: Path, number: signal.Signals) -> None:
    config = replace(tiny, steps=100_000, save_every=100_000, sample_tokens=0)
    process = start("--config", toml(config, tmp_path / "config.toml"), "--out", tmp_path / "run")
    wait_for_steps(tmp_path / "run", 2, process)
    process.send_signal(number)
    finish(process)
    assert summary(tmp_path / "run").state == "stopped"
    made = losses(tmp_path / "run")
    assert layout.steps(tmp_path / "run" / "checkpoints") == [len(made)]
    again = len(made) + 3
    finish(start("--resume", tmp_path / "run", "--steps", again))
    assert losses(tmp_path / "run")[: len(made)] == made
    assert len(losses(tmp_path / "run")) == again


@pytest.mark.slow
def test_a_run_under_nohup_outlives_its_terminal(tiny: TrainConfig, tmp_path: Path) -> None:
    config = replace(tiny, steps=200, save_every=200, sample_tokens=0)
    file, run = toml(config, tmp_path / "config.toml"), tmp_path / "run"
    process = start("--config", file, "--out", run, before=("nohup",))
    wait_for_steps(run, 2, process)
    assert process.poll() is None
    process.send_signal(signal.SIGHUP)
    finish(process)
    assert summary(run).state == "finished"


@pytest.mark.slow
def test_an_interrupted_run_says_how_to_resume_it(tiny: TrainConfig, tmp_path: Path) -> None:
    config = replace(tiny, steps=100_000, save_every=100_000, sample_tokens=0)
    run = tmp_path / "a run"
    command = [sys.executable, "-m", "keysift", "train", "--config", toml(config, tmp_path / "own.toml"), "--out", run]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment())
    wait_for_steps(run, 2, process)
    process.send_signal(signal.SIGINT)
    said = finish(process)
    (line,) = [line for line in said.splitlines() if line.startswith("resume with: ")]
    words = shlex.split(line.removeprefix("resume with: keysift "))
    subprocess.run([sys.executable, "-m", "keysift", *words, "--steps", str(len(losses(run)) + 1)], check=True)


@pytest.mark.slow
def test_a_log_nobody_reads_any_more_does_not_stop_a_run(tiny: TrainConfig, tmp_path: Path) -> None:
    config = replace(tiny, steps=40, save_every=2, sample_tokens=0)
    file = toml(config, tmp_path / "config.toml")
    command = [sys.executable, "-m", "keysift", "train", "--config", file, "--out", tmp_path / "run"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment())
    assert process.stderr is not None
    process.stderr.readline()
    process.stderr.close()
    assert process.wait(120) == 0
    assert len(losses(tmp_path / "run")) == 40


@pytest.mark.slow
@pytest.mark.parametrize("tell", [press_control_c, subprocess.Popen.terminate], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_under_torchrun_saves_and_leaves(
    tiny: TrainConfig, tmp_path: Path, tell: Callable[[subprocess.Popen[str]], None]
) -> None:
    """With Ctrl-C each process hears twice: from the terminal, and from torchrun."""
    config = replace(tiny, steps=100_000, save_every=100_000, sample_tokens=0)
    process = start("--config", toml(config, tmp_path / "config.toml"), "--out", tmp_path / "run", processes=2)
    wait_for_steps(tmp_path / "run", 2, process)
    tell(process)
    process.communicate(timeout=60)
    made = losses(tmp_path / "run")
    assert layout.steps(tmp_path / "run" / "checkpoints") == [len(made)]
    all_readable(tmp_path / "run")


# The command itself, telling when it begins to listen for signals and when it has heard one.
LISTENING = """
import sys
from pathlib import Path
from keysift.cli.main import main
from keysift.train.signals import Stop
enter, hear = Stop.__enter__, Stop._hear
def listening(self):
    enter(self)
    Path(sys.argv[1], "listening").touch()
    return self
def heard(self, number, frame):
    try:
        hear(self, number, frame)
    finally:
        Path(sys.argv[1], "heard").touch()
Stop.__enter__, Stop._hear = listening, heard
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait(tiny: TrainConfig, tmp_path: Path) -> None:
    """A step of minutes: nothing is saved, and nothing is broken either."""
    config = replace(tiny, steps=1, batch_tokens=16 * 20_000, micro_tokens=16)
    words = ["train", "--quiet", "--config", toml(config, tmp_path / "config.toml"), "--out", tmp_path / "run"]
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENING, str(tmp_path), *map(str, words)],
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
    press_control_c(process)
    # Only the process knows when it heard the first: on a busy machine that is later than it was sent.
    wait_until("heard")
    time.sleep(signals.SAME_WISH + 0.1)
    assert process.poll() is None, "one signal waits for the step"
    press_control_c(process)
    finish(process, code=130)
    assert layout.steps(tmp_path / "run" / "checkpoints") == []


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 8 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system can be mounted by root only; the limit on the size of files stands in for it")
    yield place
    subprocess.run(["umount", place], check=True)


def fill(place: Path) -> Path:
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler


@pytest.mark.slow
def test_a_full_disk_stops_with_the_checkpoint_before(tiny: TrainConfig, disk: Path, tmp_path: Path) -> None:
    config = replace(tiny, steps=100_000, save_every=5, sample_tokens=0)
    process = start("--config", toml(config, tmp_path / "config.toml"), "--out", disk / "run")
    wait_for_steps(disk / "run", 8, process)
    filler = fill(disk)
    said = finish(process, code=2)
    assert "No space left on device" in said
    goes_on(disk / "run", said, room=filler.unlink)


@pytest.mark.slow
def test_files_that_may_not_grow_stop_with_the_checkpoint_before(tiny: TrainConfig, tmp_path: Path) -> None:
    config = replace(tiny, steps=100_000, save_every=5, sample_tokens=0)
    process = start("--config", toml(config, tmp_path / "config.toml"), "--out", tmp_path / "run")
    wait_for_steps(tmp_path / "run", 8, process)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1024, 1024))
    goes_on(tmp_path / "run", finish(process, code=2))


def goes_on(run: Path, said: str, room: Callable[[], None] = lambda: None) -> None:
    """What the message promises: the checkpoint before is whole, and once there is room the run goes on from it."""
    assert "failed" in said
    assert "make room" in said
    assert "Traceback" not in said
    all_readable(run)
    good = layout.steps(run / "checkpoints")[-1]
    room()
    finish(start("--resume", run, "--steps", good + 2))
    assert len(losses(run)) == good + 2


@pytest.mark.slow
def test_a_read_only_directory_stops_with_the_checkpoint_before(tiny: TrainConfig, tmp_path: Path) -> None:
    # Root may write anywhere unless it gives that right away.
    humble = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
    if humble and shutil.which(humble[0]) is None:
        pytest.skip("root without setpriv cannot meet a read-only directory")
    config = replace(tiny, steps=100_000, save_every=5, sample_tokens=0)
    run = tmp_path / "run"
    process = start("--config", toml(config, tmp_path / "config.toml"), "--out", run, before=humble)
    wait_for_steps(run, 8, process)
    (run / "checkpoints").chmod(0o555)
    said = finish(process, code=2)
    (run / "checkpoints").chmod(0o755)
    assert "saving step" in said
    assert "is whole" in said
    all_readable(run)
    good = layout.steps(run / "checkpoints")[-1]
    finish(start("--resume", run, "--steps", good + 2))
    assert len(losses(run)) == good + 2
