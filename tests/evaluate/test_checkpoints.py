"""The models that ship: they open, they are small, and they answer at their training length."""

from pathlib import Path

import pytest
import torch

from keysift.evaluate.retrieval import grid, settings_of
from keysift.evaluate.tasks import find_task
from keysift.runs.text_model import open as open_model
from keysift.train.config_file import read_toml

FOLDER = Path(__file__).parents[2] / "checkpoints"
SHIPPED = sorted(path.parent for path in FOLDER.glob("*/config.json"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_a_shipped_model_answers(path: Path) -> None:
    found = open_model(path)
    assert all(parameter.dtype == torch.float16 for parameter in found.model.parameters())
    assert sum(file.stat().st_size for file in path.iterdir()) < 2**20
    assert found.model.config.context == read_toml(path / "recipe.toml").context == 64
    task = find_task("recall", found, seed=0)
    cells = grid(found.model, task, lengths=[64], depths=[0.1, 0.9], settings=settings_of(), instances=25)
    assert sum(cell.right for cell in cells) >= 45, "above 90%"


def test_both_ship() -> None:
    assert [path.name for path in SHIPPED] == ["one-hop-multiscreen", "one-hop-transformer"]
