"""Models in checkpoints/: they load, are small, and do at their training length what they were trained for."""

import math
from pathlib import Path

import pytest
import torch

from keysift.evaluate.retrieval import accuracy_grid, inference_settings
from keysift.evaluate.retrieval_tasks import find_task
from keysift.models.text_model import open as open_model
from keysift.train.settings import read_toml

FOLDER = Path(__file__).parents[2] / "checkpoints"
SHIPPED = sorted(path.parent for path in FOLDER.glob("*/config.json"))
TEXT = [path for path in SHIPPED if path.name.startswith("books-")]
RECALL = [path for path in SHIPPED if path not in TEXT]
# Not in the books that the text models read, and not in those that were held out.
STORY = (
    "It was late in the evening when the old man came back to the house. He had walked a long way, and he was tired. "
    'His daughter opened the door and looked at him with surprise. "Where have you been, father?" she said.'
)


@pytest.mark.parametrize("path", RECALL, ids=lambda path: path.name)
def test_recall_model_is_small_and_accurate(path: Path) -> None:
    shipped = open_model(path)
    assert all(parameter.dtype == torch.float16 for parameter in shipped.model.parameters())
    assert sum(file.stat().st_size for file in path.iterdir()) < 2**20
    assert shipped.model.config.context == read_toml(path / "recipe.toml").context == 64
    task = find_task("recall", shipped.tokenizer, seed=0)
    cells = accuracy_grid(
        shipped.model, task, lengths=[64], depths=[0.1, 0.9], settings=inference_settings(), instances=25
    )
    assert sum(cell.correct for cell in cells) >= 45, "above 90%"


@pytest.mark.parametrize("path", TEXT, ids=lambda path: path.name)
def test_text_model_is_small_and_predicts_english(path: Path) -> None:
    shipped = open_model(path)
    assert all(parameter.dtype == torch.float16 for parameter in shipped.model.parameters())
    assert sum(file.stat().st_size for file in path.iterdir()) < 5e6
    assert shipped.model.config.context == read_toml(path / "recipe.toml").context == 1024
    ids = torch.tensor([shipped.tokenizer.encode(STORY)])
    with torch.no_grad():
        logits = shipped.model.float()(ids[:, :-1])
    bits = torch.nn.functional.cross_entropy(logits[0], ids[0, 1:]).item() / math.log(2)
    assert bits < 2.2, f"{bits:.2f} bits per byte; letters counted alone have about 4.2"


def test_shipped_models() -> None:
    names = ["books-multiscreen", "needle-multiscreen", "one-hop-multiscreen", "one-hop-transformer"]
    assert [path.name for path in SHIPPED] == names
