"""Norms and angles of matrices, against turns that are known."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from keysift.runs.metrics import read
from keysift.train.config import TrainConfig
from keysift.train.turning import Turning
from tests.train.in_process import go


def test_a_known_turn() -> None:
    """Two layers of one kind, one turned by 0.1 rad and stretched, the other left alone; a tiny turn is not lost."""
    turned, still, small = (nn.Parameter(torch.tensor([[3.0, 0.0], [0.0, 4.0]])) for _ in range(3))
    gain = nn.Parameter(torch.ones(2))
    parameters = {"layers.0.a.weight": turned, "layers.1.a.weight": still, "b.weight": small, "gain": gain}
    turning = Turning(parameters)
    turning.before()
    with torch.no_grad():
        across = torch.tensor([[0.0, 5.0], [0.0, 0.0]])  # at a right angle to the matrix, and as long
        turned.copy_(2 * (math.cos(0.1) * turned + math.sin(0.1) * across))
        small.add_(1e-5 * across)
    found = turning.after()
    assert found["norms"] == {"a.weight": pytest.approx((10 + 5) / 2), "b.weight": pytest.approx(5)}
    assert found["angles"] == {"a.weight": pytest.approx(0.05, rel=1e-5), "b.weight": pytest.approx(1e-5, rel=0.05)}


@pytest.mark.slow
def test_every_step_says_it(tiny: TrainConfig, tmp_path: Path) -> None:
    lines = list(read(go(replace(tiny, steps=2, log_turning=True), tmp_path / "run") / "metrics.jsonl"))
    assert all(line["angles"].keys() == line["norms"].keys() for line in lines)
    assert all(0 < angle < 3.2 for line in lines for angle in line["angles"].values())
    assert "angles" not in next(read(go(replace(tiny, steps=1), tmp_path / "other") / "metrics.jsonl"))
