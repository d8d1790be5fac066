"""Models in checkpoints/: they load, are below 1 MB, and are accurate at their training length."""

from pathlib import Path

import pytest
import torch

from keysift.evaluate.retrieval import accuracy_grid, inference_settings
from keysift.evaluate.retrieval_tasks import find_task
from keysift.models.text_model import open as open_model
from keysift.train.settings import read_toml

FOLDER = Path(__file__).parents[2] / "checkpoints"
SHIPPED = sorted(path.parent for path in FOLDER.glob("*/config.json"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_model_is_small_and_accurate(path: Path) -> None:
    shipped = open_model(path)
    assert all(parameter.dtype == torch.float16 for parameter in shipped.model.parameters())
    assert sum(file.stat().st_size for file in path.iterdir()) < 2**20
    assert shipped.model.config.context == read_toml(path / "recipe.toml").context == 64
    task = find_task("recall", shipped.tokenizer, seed=0)
    cells = accuracy_grid(
        shipped.model, task, lengths=[64], depths=[0.1, 0.9], settings=inference_settings(), instances=25
    )
    assert sum(cell.correct for cell in cells) >= 45, "above 90%"


def test_shipped_models() -> None:
    assert [path.name for path in SHIPPED] == ["needle-multiscreen", "one-hop-multiscreen", "one-hop-transformer"]
