"""Layers of a Transformer that see positions differently: windows and patterns of layers."""

import dataclasses
from typing import Any

import pytest
import torch

from keysift.core.config import from_dict, to_dict
from keysift.kernels.attend import attend
from keysift.kernels.positions import Positions
from keysift.mechanisms import MECHANISMS
from keysift.models.transformer import TransformerConfig
from keysift.nn import cached_attention
from keysift.nn.position import alibi_slopes
from tests.models.checks import cache_matches_forward, close, perturbed_transformer, tokens_for
from tests.refusals import refuses
from tests.representatives import slow_unless_representative

SMALL = TransformerConfig(vocab_size=11, depth=4, heads=4, key_heads=2, width=16, context=16, window=(3, 3, 3, 0))
CHUNKS = (1, 5, 1, 1, 1, 7, 1, 4)


@pytest.mark.parametrize("name", slow_unless_representative(m.name for m in MECHANISMS))
def test_cache_matches_forward(name: str) -> None:
    cache_matches_forward(perturbed_transformer(dataclasses.replace(SMALL, mechanism=name)), CHUNKS)


@pytest.mark.parametrize(
    "change",
    [
        {"kept": 2},
        {"kept": 2, "position": "alibi"},
        {"position": ("rope", "alibi", "none", "rope")},
        {"position": ("p_rope", "none"), "rope_share": 0.5},
        {"position": "alibi", "window": 0, "mechanism": "softmax_sink"},
        {"position": "alibi", "mechanism": "differential_v1"},
    ],
    ids=str,
)
def test_positions_of_layers_match_their_cache(change: dict[str, Any]) -> None:
    model = perturbed_transformer(dataclasses.replace(SMALL, **change))
    cache_matches_forward(model, CHUNKS)
    cache_matches_forward(model, CHUNKS, start=1)
    tokens = tokens_for(model, 1, 14)
    parts = [model(part) for part in tokens.split([9, 5], dim=1)]
    close(model(tokens, positions=Positions.packed([[9, 5]])), torch.cat(parts, dim=1))
    keep = torch.arange(14)[None] >= 5
    close(model(tokens, keep=keep)[:, 5:], model(tokens[:, 5:]))


def test_alibi_slopes() -> None:
    assert alibi_slopes(4) == (1 / 4, 1 / 16, 1 / 64, 1 / 256)
    assert alibi_slopes(6) == (0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125)


def test_windowed_layers_stop_growing() -> None:
    model = perturbed_transformer(SMALL)
    cache, sizes = model.cache(1), []
    with torch.no_grad():
        for token in tokens_for(model, 1, 200).split(1, dim=1):
            model(token, cache=cache)
            sizes.append([layer_cache.entries["k"].shape[1] for layer_cache in cache.layers])
    assert sizes[2][:3] == sizes[-1][:3] == [2 * 3 + 1] * 3, "two key heads of three entries, and a spare slot"
    assert sizes[-1][3] > 2 * 200


def test_a_window_is_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits equal those of a model without windows whose layers get the band as an explicit mask."""
    model, tokens = perturbed_transformer(SMALL), tokens_for(perturbed_transformer(SMALL), 2, 12)
    actual = model(tokens)
    t = torch.arange(12)
    distance = t[:, None] - t

    def masked(call: Any, **options: Any) -> torch.Tensor:
        keep = distance < (call.window or 12)
        return attend(call.mechanism, call.q, call.k, call.v, keep=keep, backend="dense")

    monkeypatch.setattr(cached_attention, "attend_call", masked)
    close(actual, model(tokens))
    monkeypatch.setattr(
        cached_attention, "attend_call", lambda call, **_: attend(call.mechanism, call.q, call.k, call.v)
    )
    assert (model(tokens) - actual).abs().max() > 1e-2, "the window changes nothing here"


def test_packed_documents_and_left_padding() -> None:
    model = perturbed_transformer(SMALL)
    tokens = tokens_for(model, 1, 14)
    parts = [model(part) for part in tokens.split([9, 5], dim=1)]
    close(model(tokens, positions=Positions.packed([[9, 5]])), torch.cat(parts, dim=1))
    keep = torch.arange(14)[None] >= 5
    close(model(tokens, keep=keep)[:, 5:], model(tokens[:, 5:]))


def test_patterns_repeat() -> None:
    config = TransformerConfig(
        vocab_size=9, depth=6, heads=2, width=8, window=(4, 0), position=("rope", "rope", "none")
    )
    layers = [config.layer_position(layer) for layer in range(6)]
    assert [layer.window for layer in layers] == [4, None, 4, None, 4, None]
    assert [layer.kind for layer in layers] == ["rope", "rope", "none", "rope", "rope", "none"]
    assert from_dict(TransformerConfig, to_dict(config)) == config


def test_refusals() -> None:
    for change, match in (
        ({"window": (1,) * 5}, "window lists 5 layers and depth is 4"),
        ({"rope_share": 1.5}, r"rope_share must lie in \(0, 1\]"),
        ({"rope_share": 0.5, "position": "none"}, "no layer has RoPE; leave it out"),
        ({"position": "p_rope"}, "give a rope_share below 1, or use rope"),
        ({"kept": -1}, "kept is the number of keys beside a window"),
        ({"kept": 1, "window": 0}, "kept is the number of keys beside a window"),
        ({"position": "alibi", "mechanism": "screening"}, "so alibi has no meaning for it"),
        ({"window": -1}, "window must be at least 1, or 0 for none"),
        ({"position": ()}, "position lists 0 layers and depth is 4"),
    ):
        with refuses(match):
            dataclasses.replace(SMALL, **change)  # type: ignore[arg-type]
