"""Two processes equal one, by ddp and by fsdp2; what two saved one resumes, and back."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import keysift
from keysift.core.errors import DataError
from keysift.models.arch import MultiscreenArch
from keysift.train.config import TrainConfig
from keysift.train.distributed import Shared, World
from keysift.train.loop import train
from keysift.train.setup import accumulation_steps, autocast
from tests.refusals import refuses
from tests.train.in_process import losses
from tests.train.processes import environment, finish, start, toml


@pytest.fixture(scope="module")
def config(corpus: Path) -> TrainConfig:
    """The paper's own rate: the batch is cut in the same two parts, so rounding is all that may differ."""
    fields = {"context": 16, "batch_tokens": 64, "micro_tokens": 32, "save_every": 25, "val_sequences": 4}
    return TrainConfig(
        model=MultiscreenArch.psi(2), data=str(corpus), steps=50, warmup=3, sample_tokens=4, ema=0.9, **fields
    )  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def alone(config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("alone") / "run"
    train(config, run, show=False)
    return run


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_processes_equal_one(config: TrainConfig, alone: Path, tmp_path: Path, strategy: str) -> None:
    run, file = tmp_path / "run", toml(config, tmp_path / "config.toml")
    flags = ("--strategy", strategy)
    finish(start("--config", file, "--out", run, "--steps", 20, *flags, processes=2))
    # Saved on two, resumed on one, and back on two.
    finish(start("--resume", run, "--steps", 35, "--strategy", "none"))
    finish(start("--resume", run, "--steps", 50, *flags, processes=2))
    assert losses(run) == pytest.approx(losses(alone), abs=1e-5)
    ours, theirs = keysift.load(run).state_dict(), keysift.load(alone).state_dict()
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_another_cut_changes_rounding_only(config: TrainConfig, tmp_path: Path, strategy: str) -> None:
    """One process takes the batch at once, two accumulate over two calls each: every sum is of other parts."""
    gentle = replace(config, lr=1e-3, sample_tokens=0)
    train(replace(gentle, micro_tokens=64), tmp_path / "alone", show=False)
    file = toml(replace(gentle, micro_tokens=16), tmp_path / "config.toml")
    finish(start("--config", file, "--out", tmp_path / "run", "--strategy", strategy, processes=2))
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "alone"), abs=1e-5)


_THREADS = """
import sys
from pathlib import Path
from keysift.train.config_file import read_toml
from keysift.train.loop import train
train(read_toml(Path(sys.argv[1])), Path(sys.argv[2]), show=False)
left = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
sys.stderr.write(f"threads left: {[name for name in left if 'gloo' in name]}\\n")
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_no_thread_of_the_process_group_outlives_it(config: TrainConfig, tmp_path: Path, strategy: str) -> None:
    """One that lets go of a tensor while Python ends aborts the process: now and then, on a busy machine."""
    (tmp_path / "run.py").write_text(_THREADS)
    file = toml(replace(config, steps=1, strategy=strategy, sample_tokens=0), tmp_path / "config.toml")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [tmp_path / "run.py", file, tmp_path / "run"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("threads left: []") == 2, done.stderr[-3000:]


@pytest.mark.slow
def test_every_process_refuses_together(config: TrainConfig, alone: Path, tmp_path: Path) -> None:
    process = start("--config", toml(config, tmp_path / "config.toml"), "--out", alone, processes=2)
    _, said = process.communicate(timeout=120)
    assert process.returncode != 0
    assert said.count("already holds a run") == 1, said[-2000:]


def test_a_batch_is_divided_evenly_or_not_at_all(config: TrainConfig) -> None:
    two = World(0, 2, torch.device("cpu"))
    assert accumulation_steps(config, two) == 1
    assert accumulation_steps(config, World(0, 1, torch.device("cpu"))) == 2
    assert accumulation_steps(replace(config, micro_tokens=1), two) == 2
    with refuses("4 sequences a step cannot be shared by 3 processes; make batch_tokens a multiple of 48"):
        accumulation_steps(config, World(0, 3, torch.device("cpu")))


def test_strategies_that_do_not_fit() -> None:
    model = keysift.Multiscreen(keysift.MultiscreenConfig.psi(2, vocab_size=5))
    with refuses("strategy none is for one process, got 2"):
        Shared(model, "none", World(0, 2, torch.device("cpu")))


def test_the_others_refuse_with_the_words_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def hear(box: list[object], src: int, device: torch.device) -> None:
        box[0] = DataError("the first one could not")

    monkeypatch.setattr(torch.distributed, "broadcast_object_list", hear)
    with refuses("the first one could not"):
        World(1, 2, torch.device("cpu")).first_does(lambda: None)


def test_bf16_is_asked_of_hardware_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    with refuses("this GPU has no bf16; use --precision fp32"):
        autocast(TrainConfig(precision="bf16"), World(0, 1, torch.device("cuda")))
