"""Trace and edit transformers models with the tap names of keysift models."""

import pytest
import torch

from keysift.hub.taps import edit, trace
from tests.hub.test_probe import FAMILIES, TEXTS, plain
from tests.hub.transformers_models import build
from tests.refusals import refuses


@pytest.mark.parametrize("family", FAMILIES)
def test_traced_weights_equal_output_attentions(family: str) -> None:
    model = build(family, "eager")
    theirs = plain(model, TEXTS)
    with trace(model, "layers.*.relevance", "blocks.1.attn.hook_q") as values:
        assert torch.equal(plain(model, TEXTS).logits, theirs.logits)
    assert set(values) == {"layers.0.attention.relevance", "layers.1.attention.relevance", "layers.1.attention.q"}
    for layer in (0, 1):
        real = slice(-len(TEXTS[1]), None)
        actual, expected = values[f"layers.{layer}.attention.relevance"], theirs.attentions[layer]
        torch.testing.assert_close(actual[0], expected[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(actual[1, :, real], expected[1, :, real], rtol=1e-4, atol=1e-5)
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("what", ["q", "k", "v", "scores", "relevance", "output"])
def test_every_tap_can_be_edited(what: str) -> None:
    model = build("llama")
    before = plain(model, TEXTS).logits
    with edit(model, {f"layers.1.{what}": lambda x: x}):
        torch.testing.assert_close(plain(model, TEXTS).logits[0], before[0], rtol=1e-4, atol=1e-4)
    with edit(model, {f"layers.1.{what}": lambda x: x + x.square()}), trace(model, "layers.*." + what) as values:
        after = plain(model, TEXTS).logits
    assert not torch.allclose(after, before, atol=1e-3)
    with trace(model, "layers.*." + what) as unedited:
        assert torch.equal(plain(model, TEXTS).logits, before)
    first, second = f"layers.0.attention.{what}", f"layers.1.attention.{what}"
    torch.testing.assert_close(values[first], unedited[first])
    torch.testing.assert_close(values[second], unedited[second] + unedited[second].square(), rtol=1e-4, atol=1e-5)


def test_dropping_a_key_of_one_head_changes_that_head_only() -> None:
    model = build("gpt2")

    def drop(w_BHTS: torch.Tensor) -> torch.Tensor:
        w = w_BHTS.clone()
        w[:, 2, :, 1] = 0
        return w

    with edit(model, {"layers.0.relevance": drop}), trace(model, "layers.0.output") as dropped:
        plain(model, TEXTS[:1])
    with trace(model, "layers.0.output") as unedited:
        plain(model, TEXTS[:1])
    same = (dropped["layers.0.attention.output"] == unedited["layers.0.attention.output"]).all(-1)[0]
    assert same[[0, 1, 3]].all()
    assert same[2].tolist() == [True] + [False] * (len(TEXTS[0]) - 1)


def test_unknown_taps_and_other_shapes_are_refused() -> None:
    model = build("llama")
    with refuses("no tap matches 'layers.7.q'"), trace(model, "layers.7.q"):
        pass
    with refuses("the edit of layers.0.attention.v must return"), edit(model, {"layers.0.v": lambda v: v[:, :1]}):
        plain(model, TEXTS)
    assert model.config._attn_implementation == "sdpa", "the implementation is restored"
