"""Norms of matrices and angles of updates, compared with known rotations."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from keysift.runs.metrics import read
from keysift.train.config import TrainConfig
from keysift.train.monitor import UpdateAngles
from tests.train.in_process import run_training


def test_a_known_rotation() -> None:
    """Of two layers with the same name, one rotates by 0.1 rad and is scaled. A rotation of 1e-5 rad is resolved."""
    rotated, unchanged, small = (nn.Parameter(torch.tensor([[3.0, 0.0], [0.0, 4.0]])) for _ in range(3))
    gain = nn.Parameter(torch.ones(2))
    parameters = {"layers.0.a.weight": rotated, "layers.1.a.weight": unchanged, "b.weight": small, "gain": gain}
    angles = UpdateAngles(parameters)
    angles.before_step()
    with torch.no_grad():
        orthogonal = torch.tensor([[0.0, 5.0], [0.0, 0.0]])  # orthogonal to the matrix, with the same norm
        rotated.copy_(2 * (math.cos(0.1) * rotated + math.sin(0.1) * orthogonal))
        small.add_(1e-5 * orthogonal)
    update = angles.after_step()
    assert update["norms"] == {"a.weight": pytest.approx((10 + 5) / 2), "b.weight": pytest.approx(5)}
    assert update["angles"] == {"a.weight": pytest.approx(0.05, rel=1e-5), "b.weight": pytest.approx(1e-5, rel=0.05)}


@pytest.mark.slow
def test_angles_are_logged_at_every_step(tiny: TrainConfig, tmp_path: Path) -> None:
    lines = list(read(run_training(replace(tiny, steps=2, log_angles=True), tmp_path / "run") / "metrics.jsonl"))
    assert all(line["angles"].keys() == line["norms"].keys() for line in lines)
    assert all(0 < angle < 3.2 for line in lines for angle in line["angles"].values())
    assert "angles" not in next(read(run_training(replace(tiny, steps=1), tmp_path / "other") / "metrics.jsonl"))
