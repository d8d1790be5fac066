"""Train in this process, and read losses and weights of a run."""

from pathlib import Path
from typing import Any

import torch

from keysift.runs.layout import METRICS
from keysift.runs.metrics import read
from keysift.train.config import TrainConfig
from keysift.train.loop import train


def losses(run: Path) -> list[float]:
    """Losses in the metrics of a run. Asserts that every step is recorded once."""
    lines = list(read(run / METRICS))
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1)), "every step is recorded once"
    return [line["loss"] for line in lines]


def run_training(config: TrainConfig | None, run: Path, **options: Any) -> Path:
    """Train without output unless `show` is given. Returns `run`."""
    train(config, run, **{"show": False, **options})
    return run


def distance(left: torch.nn.Module, right: torch.nn.Module) -> float:
    """Sum of absolute differences of the parameters."""
    with torch.no_grad():
        return sum(float((a - b).abs().sum()) for a, b in zip(left.parameters(), right.parameters(), strict=True))
