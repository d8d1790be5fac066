"""Parameter counts of the code agree with the tables of the paper, the formula and the docs."""

import pytest
import torch

from keysift.models.presets import PRESETS, rows
from tests.models.counts import TABLE


def test_every_row_of_the_tables() -> None:
    assert {row["name"]: row["parameters"] for row in rows()} == TABLE


@pytest.mark.parametrize("psi", [8, 16, 32, 48, 64])
def test_the_formula_of_the_family(psi: int) -> None:
    total, outside = PRESETS.find(f"multiscreen-psi{psi}").counts()
    assert outside == psi**2 * (psi**2 * (2 * 16 + 3 * 64) + 3) + 2
    assert total == outside + 50_257 * psi**2


@pytest.mark.parametrize("name", [name for name in PRESETS.names() if name.startswith("transformer")])
def test_the_formula_of_the_baseline(name: str) -> None:
    preset = PRESETS.find(name)
    depth, width = preset.config.depth, preset.config.width
    assert preset.counts()[1] == depth * (4 * width**2 + 3 * width * (8 * width // 3) + 2 * width)


def test_a_preset_builds() -> None:
    model = PRESETS.find("multiscreen-psi8").model(torch.Generator().manual_seed(0))
    assert sum(p.numel() for p in model.parameters()) == TABLE["multiscreen-psi8"]
