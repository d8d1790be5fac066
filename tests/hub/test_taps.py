"""Trace and edit transformers models with the tap names of keysift models."""

import pytest
import torch

from keysift.hub.stream_taps import decoder_layers
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


@pytest.mark.parametrize("family", FAMILIES)
def test_the_residual_stream_is_the_models_own(family: str) -> None:
    """The traced parts add up, and equal output_hidden_states; every part can be edited, and then no hook is left."""
    model = build(family, "eager")
    tokens = torch.tensor(TEXTS[:1])
    theirs = model(tokens, output_hidden_states=True)
    with trace(model, "blocks.*.hook_*", "*.mlp.hook_post", "hook_embed", "logits") as seen:
        assert torch.equal(model(tokens).logits, theirs.logits)
    assert torch.equal(seen["logits"], theirs.logits)
    assert seen["embed"].shape == seen["layers.0.mlp_out"].shape == (1, 12, 32)
    assert torch.equal(seen["layers.0.stream"], seen["layers.1.stream_in"])
    for layer in (0, 1):
        own = {name: seen.get(f"layers.{layer}.{name}") for name in PARTS}
        assert torch.equal(own["stream_in"], theirs.hidden_states[layer])
        middle = own["stream_in"] + own["attention_out"]
        assert (own["stream_mid"] is None) == (family == "phi"), "its attention and its mlp read the same stream"
        torch.testing.assert_close(own["stream"], middle + own["mlp_out"], rtol=1e-4, atol=1e-4)
        if own["stream_mid"] is not None:
            assert torch.equal(own["stream_mid"], middle)
    for name in [address for address in seen if ".0." not in address]:
        with edit(model, {name: lambda x: x + x.square()}):
            assert not torch.allclose(model(tokens).logits, theirs.logits, atol=1e-3), name
        with edit(model, {name: lambda x: x}):
            torch.testing.assert_close(model(tokens).logits, theirs.logits, rtol=1e-4, atol=1e-4)
    assert torch.equal(model(tokens).logits, theirs.logits)


PARTS = ("stream_in", "attention_out", "stream_mid", "mlp_out", "stream")


def test_a_model_without_decoder_layers_is_refused() -> None:
    with refuses("Linear has no list of layers with attention and mlp"):
        decoder_layers(torch.nn.Linear(2, 2))


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
