"""Estimated memory against the measured peaks of runs of one and two processes: one here, all by `make test-scale`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keysift.models.architecture import Arch, MultiscreenArch, TransformerArch
from keysift.train.config import TrainConfig
from keysift.train.footprint import measure_footprint
from keysift.train.plan import memory_parts, sizes_of
from keysift.train.preflight import vocabulary
from tests.train.processes import environment, write_config

ROOT = Path(__file__).parents[2]
TOLERANCE = 0.15
MODELS: dict[str, Arch] = {
    "multiscreen": MultiscreenArch(depth=6, tiles=16, width=512),
    "transformer": TransformerArch(depth=4, heads=8, width=512),
}
# strategy, processes, accumulation steps, recompute
SETTINGS = [("none", 1, 2, True), ("none", 1, 1, False), ("ddp", 2, 1, False), ("fsdp2", 2, 2, False)]
ALL = bool(os.environ.get("SCALE"))


def measured(config: TrainConfig, processes: int, folder: Path) -> float:
    """Peak memory of a process of this run: the largest of its ranks."""
    folder.mkdir()
    file = write_config(config, folder / "config.toml")
    launch = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"] if processes > 1 else []
    command = [sys.executable, "-m", *launch, "tests.scale.measured_peak", str(file), str(folder / "run")]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env=environment())
    return max(float(peak.read_text()) for peak in folder.glob("run.peak-*"))


def estimated(config: TrainConfig, processes: int) -> float:
    sizes = sizes_of(config, vocabulary(config, show=False), processes)
    footprint = measure_footprint(config.model, compiled=True)
    return sum(memory_parts(sizes, footprint, config.strategy, processes, recompute=config.recompute).values())


@pytest.mark.slow
@pytest.mark.parametrize("arch", list(MODELS)[: None if ALL else 1])
@pytest.mark.parametrize(("strategy", "processes", "accumulation", "recompute"), SETTINGS[: None if ALL else 1])
def test_memory_is_within_15_percent_of_the_measured_peak(
    arch: str, strategy: str, processes: int, accumulation: int, recompute: bool, tmp_path: Path
) -> None:
    config = TrainConfig(
        model=MODELS[arch],
        data=str(ROOT / "docs" / "*.md"),
        tokenizer="bpe:1000",
        context=512,
        batch_tokens=2048 * processes * accumulation,
        micro_tokens=2048,
        steps=3,
        strategy=strategy,  # type: ignore[arg-type]
        recompute=recompute,
        sample_tokens=0,
        val_sequences=1,
        device="cpu",
    )
    peak, estimate = measured(config, processes, tmp_path / "run"), estimated(config, processes)
    assert abs(estimate / peak - 1) < TOLERANCE, f"estimated {estimate / 2**20:.0f} MiB, measured {peak / 2**20:.0f}"
