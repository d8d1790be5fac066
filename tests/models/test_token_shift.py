"""FoX Pro: keys and values shifted by one token, norms per head, output norm and gate; also in every use of a cache."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from keysift.kernels.positions import Positions
from keysift.models.language_model import LanguageModel
from keysift.models.transformer import TransformerConfig
from tests.models.checks import cache_matches_forward, close, perturbed_transformer, tokens_for
from tests.refusals import refuses

PRO = TransformerConfig(
    vocab_size=11,
    depth=2,
    heads=4,
    key_heads=2,
    width=16,
    context=16,
    mechanism="forgetting+output_norm+output_gate",
    position="none",
    qk_norm=True,
    qk_gains="per_head",
    shift="both",
)
CHUNKS = (5, 1, 9, 2, 1, 6)


def pro(**change: Any) -> LanguageModel:
    return perturbed_transformer(dataclasses.replace(PRO, **change))


def _norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    return gain * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def layer_of_the_paper(p: dict[str, Tensor], x_TD: Tensor) -> Tensor:
    """Attention of one layer of FoX Pro (arXiv:2503.02130v2), one query and head at a time."""

    def shifted(name: str) -> list[Tensor]:
        raw = F.linear(x_TD, p[f"{name}_proj.weight"])
        share = F.linear(x_TD, p[f"shift.{name}_share.weight"]).sigmoid()
        earlier = torch.cat((torch.zeros_like(raw[:1]), raw[:-1]))
        return [
            share[:, [g]] * earlier[:, 4 * g : 4 * g + 4] + (1 - share[:, [g]]) * raw[:, 4 * g : 4 * g + 4]
            for g in range(2)
        ]

    k, v = shifted("k"), shifted("v")
    q = F.linear(x_TD, p["q_proj.weight"])
    log_f = F.logsigmoid(F.linear(x_TD, p["scalars.raw_log_forget.weight"], p["scalars.raw_log_forget.bias"]))
    gate = F.linear(x_TD, p["scalars.raw_output_gate.weight"]).sigmoid()
    heads = []
    for h in range(4):
        group, part = h // 2, slice(4 * h, 4 * h + 4)
        q_h = _norm(q[:, part], p["q_norm.weight"][part], 1e-5)
        k_h = _norm(k[group], p["k_norm.weight"][4 * group : 4 * group + 4], 1e-5)
        rows = []
        for i in range(len(x_TD)):
            scores = [q_h[i] @ k_h[j] / 2 + log_f[j + 1 : i + 1, h].sum() for j in range(i + 1)]
            rows.append(torch.stack(scores).softmax(0) @ v[group][: i + 1])
        heads.append(_norm(torch.stack(rows), p["scalars.raw_norm_gain"][h], 1e-6) * gate[:, part])
    return F.linear(torch.cat(heads, 1), p["o_proj.weight"])


def test_a_layer_equals_the_formulas_of_the_paper() -> None:
    """Output and the gradient of every parameter, in fp64."""
    attention = pro().double().layers[0].attention
    x = torch.randn(1, 7, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    context = pro().attention_context(torch.zeros(1, 7, dtype=torch.int64))
    ours = attention(x, context, None)[0]  # type: ignore[operator]
    state = dict(attention.named_parameters())  # type: ignore[union-attr]
    theirs = layer_of_the_paper(state, x[0])
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    towards = torch.randn_like(ours)
    gradients = [torch.autograd.grad((y * towards).sum(), list(state.values())) for y in (ours, theirs)]
    for name, a, b in zip(state, *gradients, strict=True):
        assert float(b.abs().max()) > 0, name
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10, msg=lambda text, name=name: f"d/d {name}: {text}")


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"shift": "keys"},
        {"shift": "values"},
        {"mechanism": "softmax", "position": "rope", "qk_norm": False, "qk_gains": "shared"},
        {"mechanism": "screening", "shift": "values", "qk_norm": False, "qk_gains": "shared", "position": "rope"},
        {"mechanism": "differential_v1", "position": "alibi", "window": 4, "kept": 1},
        {"window": (3, 0)},
    ],
    ids=str,
)
def test_any_chunks_with_a_cache(change: dict[str, Any]) -> None:
    """A chunk after others continues with their last token. The authors' code starts such a chunk from zeros."""
    for chunks in (CHUNKS, (1,) * 8, (23, 1)):
        cache_matches_forward(pro(**change), chunks)
    cache_matches_forward(pro(**change), CHUNKS, start=5)


@torch.no_grad()
def test_documents_and_padding_are_not_mixed() -> None:
    model = pro()
    tokens = tokens_for(model, 1, 14)
    parts = [model(part) for part in tokens.split([9, 5], dim=1)]
    close(model(tokens, positions=Positions.packed([[9, 5]])), torch.cat(parts, dim=1))
    keep = torch.arange(14)[None] >= 5
    close(model(tokens, keep=keep)[:, 5:], model(tokens[:, 5:]))
    keep = torch.tensor([[True] * 6 + [False] * 3 + [True] * 5])
    close(model(tokens, keep=keep)[keep], model(tokens[keep][None])[0])
    with refuses("explicit positions do not say which token"):
        model(tokens, positions=Positions.explicit(torch.arange(14), torch.arange(14)))


@torch.no_grad()
def test_rows_of_different_lengths_pause_and_reorder() -> None:
    model = pro()
    tokens = tokens_for(model, 3, 9)
    keep = torch.arange(9)[None] >= torch.tensor([[0], [4], [9]])
    cache = model.cache(3)
    model(tokens[:, :6], keep=keep[:, :6], cache=cache)
    model.fill(tokens[:, 6:], keep=keep[:, 6:], cache=cache)
    rows = [tokens[row, keep[row]] for row in range(3)]
    for step, order in enumerate(([0, 1, 2], [2, 0, 1], [1, 1, 0])):
        cache.select(torch.tensor(order))
        rows = [rows[row] for row in order]
        token = tokens_for(model, 3, 1, seed=step)
        real = torch.tensor([[True], [step != 1], [True]])
        out = model(token, keep=real, cache=cache)
        for row in range(3):
            if real[row]:
                rows[row] = torch.cat((rows[row], token[row]))
                close(out[row], model(rows[row][None])[0, -1:])


@torch.no_grad()
def test_crop_goes_back_as_far_as_the_spare_entries() -> None:
    model = pro()
    text, other = tokens_for(model, 2, 20), tokens_for(model, 2, 20, seed=9)
    cache = model.cache(2, spare=3)
    model(text[:, :13], cache=cache)
    cache.crop(torch.tensor([4, 2]))
    mixed = [torch.cat((text[0, :9], other[0, 9:12])), torch.cat((text[1, :11], other[1, 9:12]))]
    out = model(other[:, 9:12], cache=cache)
    for row in range(2):
        close(out[row], model(mixed[row][None])[0, -3:])
    with refuses(r"cannot crop 5 tokens: .*a layer that shifts keys counts as one with a window of 2.* spare=4"):
        cache.crop(5)
    cache.crop(3)
    close(model(other[:, 9:12], cache=cache)[0], out[0])


@torch.no_grad()
def test_the_cache_grows_by_one_token_of_unshifted_numbers() -> None:
    """Two rows of 8 fp32 numbers for keys and for values, and a spare slot, in each layer, whatever the length."""
    bytes_at: dict[str, list[int]] = {}
    for shift in ("none", "both"):
        model = pro(shift=shift)
        cache = model.cache(1)
        for _ in range(3):
            model(tokens_for(model, 1, 30), cache=cache)
            bytes_at.setdefault(shift, []).append(cache.nbytes)
    assert [b - a for a, b in zip(*bytes_at.values(), strict=True)] == [2 * 3 * 16 * 4] * 3


def test_gains_per_head_need_a_norm() -> None:
    with refuses("qk_gains is per_head, and there is no norm that they scale"):
        dataclasses.replace(PRO, qk_norm=False)
