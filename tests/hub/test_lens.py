"""The whole lens on a small random checkpoint of every family: several texts in one batch, and activation patching."""

import pytest
import torch

from keysift.hub.lens_model import TransformersModel
from keysift.lens.experiments.patching import patch
from keysift.lens.inspection import inspect
from keysift.records.lens import from_json
from tests.hub.test_probe import EAGER_ONLY, FAMILIES
from tests.hub.transformers_models import build, tokenizer

TEXTS = {
    "first": "the red ball was gone and she ran home fast , the red ball was gone .",
    "second": "the sky was blue and the ball was red .",
}


def open_family(family: str) -> TransformersModel:
    return TransformersModel(build(family, "eager" if family in EAGER_ONLY else "sdpa"), tokenizer(), f"tiny {family}")


@pytest.mark.parametrize("family", FAMILIES)
def test_inspecting_several_texts(family: str) -> None:
    model = open_family(family)
    record = inspect(model, TEXTS, batch=2)
    for text in record.texts:
        ids = torch.tensor([model.encode(TEXTS[text.name])])
        assert text.loss == pytest.approx(float(model.model(ids, labels=ids).loss.detach()), rel=1e-4)
    assert [len(maps.heads) for maps in record.maps] == [8, 8]
    assert all(head.values["row_mass"] == pytest.approx(1, abs=1e-5) for head in record.heads)
    assert 3 <= len(record.story) <= 5
    assert from_json(record.to_json()).to_json() == record.to_json()


@pytest.mark.parametrize("family", FAMILIES)
def test_patching_the_token_that_differs(family: str) -> None:
    """Only the embedding of that token restores the answer, and after the last layer only the last position does."""
    model = open_family(family)
    prompts = ("she ran the red ball was", "she ran the blue ball was")
    embedded = patch(model, *prompts, answer=" gone", at="hook_embed")
    assert embedded.effects[0] == pytest.approx([0, 0, 0, 1, 0, 0], abs=1e-4)
    found = patch(model, *prompts, answer=" gone", instead=" home", at="blocks.*.hook_resid_post")
    assert found.rows == ("layers.0.stream", "layers.1.stream")
    assert found.effects[1] == pytest.approx([0, 0, 0, 0, 0, 1], abs=1e-4)
