"""Training in this process, and what a run left."""

from pathlib import Path
from typing import Any

import torch

from keysift.runs.layout import METRICS
from keysift.runs.metrics import read
from keysift.train.config import TrainConfig
from keysift.train.loop import train


def losses(run: Path) -> list[float]:
    lines = list(read(run / METRICS))
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1)), "each step once"
    return [line["loss"] for line in lines]


def go(config: TrainConfig | None, run: Path, **rest: Any) -> Path:
    train(config, run, **{"show": False, **rest})
    return run


def distance(left: torch.nn.Module, right: torch.nn.Module) -> float:
    with torch.no_grad():
        return sum(float((a - b).abs().sum()) for a, b in zip(left.parameters(), right.parameters(), strict=True))
