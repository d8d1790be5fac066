"""Two processes match one with ddp and fsdp2, and either resumes the checkpoints of the other."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import keysift
from keysift.core.errors import DataError
from keysift.models.architecture import MultiscreenArch
from keysift.train.config import TrainConfig
from keysift.train.distributed import DistributedModel, World, accumulation_steps, autocast
from keysift.train.loop import train
from tests.refusals import refuses
from tests.train.in_process import losses
from tests.train.processes import environment, finish, start, write_config


@pytest.fixture(scope="module")
def config(corpus: Path) -> TrainConfig:
    """The learning rate of the paper. One and two processes use the same micro-batches, so only rounding may differ."""
    fields = {"context": 16, "batch_tokens": 64, "micro_tokens": 32, "save_every": 15, "val_sequences": 4}
    return TrainConfig(
        model=MultiscreenArch.psi(2), data=str(corpus), steps=30, warmup=3, sample_tokens=4, ema=0.9, **fields
    )  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def single_process_run(config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("single") / "run"
    train(config, run, show=False)
    return run


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_processes_match_one(config: TrainConfig, single_process_run: Path, tmp_path: Path, strategy: str) -> None:
    run, file = tmp_path / "run", write_config(config, tmp_path / "config.toml")
    flags = ("--strategy", strategy)
    finish(start("--config", file, "--out", run, "--steps", 12, *flags, processes=2))
    # Saved by two processes, resumed by one, then by two again.
    finish(start("--resume", run, "--steps", 21, "--strategy", "none"))
    finish(start("--resume", run, "--steps", 30, *flags, processes=2))
    assert losses(run) == pytest.approx(losses(single_process_run), abs=1e-5)
    ours, theirs = keysift.load(run).state_dict(), keysift.load(single_process_run).state_dict()
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_other_micro_batches_change_rounding_only(config: TrainConfig, tmp_path: Path, strategy: str) -> None:
    """One process takes the whole batch; two processes accumulate over two micro-batches each."""
    low_rate = replace(config, lr=1e-3, sample_tokens=0)
    train(replace(low_rate, micro_tokens=64), tmp_path / "alone", show=False)
    file = write_config(replace(low_rate, micro_tokens=16), tmp_path / "config.toml")
    finish(start("--config", file, "--out", tmp_path / "run", "--strategy", strategy, processes=2))
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "alone"), abs=1e-5)


_THREADS = """
import sys
from pathlib import Path
from keysift.train.settings import read_toml
from keysift.train.loop import train
train(read_toml(Path(sys.argv[1])), Path(sys.argv[2]), show=False)
left = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
sys.stderr.write(f"threads left: {[name for name in left if 'gloo' in name]}\\n")
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_the_process_group_leaves_no_threads(config: TrainConfig, tmp_path: Path, strategy: str) -> None:
    """A thread that frees a tensor during interpreter shutdown can abort the process."""
    (tmp_path / "run.py").write_text(_THREADS)
    file = write_config(replace(config, steps=1, strategy=strategy, sample_tokens=0), tmp_path / "config.toml")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [tmp_path / "run.py", file, tmp_path / "run"]
    process = subprocess.run(command, check=False, capture_output=True, text=True, env=environment())
    assert process.returncode == 0, process.stderr[-3000:]
    assert process.stderr.count("threads left: []") == 2, process.stderr[-3000:]


@pytest.mark.slow
def test_two_processes_print_an_error_once(config: TrainConfig, single_process_run: Path, tmp_path: Path) -> None:
    process = start(
        "--config", write_config(config, tmp_path / "config.toml"), "--out", single_process_run, processes=2
    )
    _, stderr = process.communicate(timeout=120)
    assert process.returncode != 0
    assert stderr.count("already holds a run") == 1, stderr[-2000:]


def test_a_batch_must_divide_evenly_among_processes(config: TrainConfig) -> None:
    two_ranks = World(0, 2, torch.device("cpu"))
    assert accumulation_steps(config, two_ranks) == 1
    assert accumulation_steps(config, World(0, 1, torch.device("cpu"))) == 2
    assert accumulation_steps(replace(config, micro_tokens=1), two_ranks) == 2
    with refuses("4 sequences per step cannot be divided among 3 processes; make batch_tokens a multiple of 48"):
        accumulation_steps(config, World(0, 3, torch.device("cpu")))


def test_strategy_none_needs_a_single_process() -> None:
    model = keysift.Multiscreen(keysift.MultiscreenConfig.psi(2, vocab_size=5))
    with refuses("strategy none is for one process, got 2"):
        DistributedModel(model, "none", World(0, 2, torch.device("cpu")))


def test_an_error_of_rank_zero_is_raised_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    def broadcast(objects: list[object], src: int, device: torch.device) -> None:
        objects[0] = DataError("rank zero failed")

    monkeypatch.setattr(torch.distributed, "broadcast_object_list", broadcast)
    with refuses("rank zero failed"):
        World(1, 2, torch.device("cpu")).on_rank_zero(lambda: None)


def test_bf16_needs_hardware_support(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    with refuses("this GPU does not support bf16; use --precision fp32"):
        autocast(TrainConfig(precision="bf16"), World(0, 1, torch.device("cuda")))
