"""A probe reads the attention of a transformers model without changing it, for every family and implementation."""

from typing import Any

import pytest
import torch
from torch import Tensor

from keysift.hub.lens_model import TransformersModel
from keysift.hub.probe import probed
from keysift.lens.layer_view import LayerView
from keysift.lens.model import pad
from tests.hub.transformers_models import build, tokenizer
from tests.refusals import refuses

TEXTS = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 2, 3], [7, 8, 9, 1, 2]]
EAGER_ONLY = ("gemma2",)
FAMILIES = ["gpt2", "llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3", "smollm3", "phi", "phi3"]
CASES = [
    (family, implementation)
    for family in FAMILIES
    for implementation in ("sdpa", "eager")
    if (family, implementation) != ("gemma2", "sdpa")
]


def plain(model: Any, texts: list[list[int]]) -> Any:
    tokens, keep, _ = pad(texts)
    at = (keep.long().cumsum(1) - 1).clamp_min(0)
    with torch.no_grad():
        return model(
            input_ids=tokens, attention_mask=keep.long(), position_ids=at, use_cache=False, output_attentions=True
        )


@pytest.mark.slow
@pytest.mark.parametrize(("family", "implementation"), CASES)
def test_probing_leaves_logits_bit_identical(family: str, implementation: str) -> None:
    model = build(family, implementation)
    layers: list[int] = []
    before = plain(model, TEXTS).logits
    actual = TransformersModel(model, tokenizer(), "tiny").run(TEXTS, lambda view: layers.append(view.layer))
    assert layers == [0, 1]
    for row, ids in enumerate(TEXTS):
        assert torch.equal(actual[row], before[row, -len(ids) :])
    assert model.config._attn_implementation == implementation, "the implementation is restored"
    assert torch.equal(plain(model, TEXTS).logits, before)


@pytest.mark.parametrize(("family", "implementation"), CASES)
def test_probed_weights_equal_output_attentions(family: str, implementation: str) -> None:
    """Compared with output_attentions of the eager model, with grouped heads, windows, soft caps and left padding."""
    window = {"sliding_window": 4} if family in ("mistral", "gemma2") else {}
    theirs = plain(build(family, "eager", **window), TEXTS).attentions
    weights: dict[tuple[int, int], Tensor] = {}
    visible: dict[tuple[int, int], Tensor] = {}

    def collect(view: LayerView) -> None:
        for block in view.blocks():
            weights[block.layer, block.text] = block.weights_HTS
            visible[block.layer, block.text] = block.visible_HTS

    TransformersModel(build(family, implementation, **window), tokenizer(), "tiny").run(TEXTS, collect)
    for (layer, text), actual in weights.items():
        n = len(TEXTS[text])
        torch.testing.assert_close(actual, theirs[layer][text, :, -n:, -n:], rtol=1e-4, atol=1e-5)
        assert int(visible[layer, text][0, -1].sum()) == (4 if window and (family, layer) != ("gemma2", 1) else n)
    assert len(weights) == 4


@pytest.mark.parametrize("family", FAMILIES)
def test_output_from_blocks_equals_the_models_output(family: str) -> None:
    implementation = "eager" if family in EAGER_ONLY else "sdpa"
    model = build(family, implementation)
    before = plain(model, TEXTS).logits
    actual = TransformersModel(model, tokenizer(), "tiny").run(
        TEXTS, lambda r: r.output(lambda block: block.weights_HTS)
    )
    for row, ids in enumerate(TEXTS):
        torch.testing.assert_close(actual[row], before[row, -len(ids) :], rtol=1e-4, atol=1e-4)
    changed = TransformersModel(model, tokenizer(), "tiny").run(
        TEXTS, lambda r: r.output(lambda block: 0 * block.weights_HTS)
    )
    assert not torch.allclose(changed[0], actual[0], atol=1e-2)


def test_eager_and_sdpa_agree_when_probed() -> None:
    actual = [
        TransformersModel(build("llama", implementation), tokenizer(), "tiny").run(TEXTS, lambda r: None)
        for implementation in ("eager", "sdpa")
    ]
    for eager, sdpa in zip(*actual, strict=True):
        torch.testing.assert_close(eager, sdpa, rtol=1e-4, atol=1e-4)


def test_batching_does_not_change_logits() -> None:
    model = TransformersModel(build("gpt2"), tokenizer(), "tiny")
    alone, batched = model.run(TEXTS[1:], lambda r: None)[0], model.run(TEXTS, lambda r: None)[1]
    torch.testing.assert_close(alone, batched, rtol=1e-4, atol=1e-4)


def test_unsupported_implementation_is_refused() -> None:
    model = build("llama")
    model.config._attn_implementation = "paged|eager"
    with refuses(r"'paged\|eager' has no mask function that a probe can use"), probed(model, lambda r: None, (0,)):
        pass


def test_additive_score_terms_are_refused() -> None:
    from keysift.hub.probe import _view

    module = torch.nn.Linear(1, 1)
    with refuses("Linear adds s_aux to its scores, which the lens does not support"):
        _view(module, *(torch.zeros(1, 1, 2, 2),) * 3, None, (0,), {"s_aux": torch.zeros(1)})
