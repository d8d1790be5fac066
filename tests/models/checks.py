"""Checks of a correct model, as functions that raise AssertionError. Tests call them; seeded faults must fail them."""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from keysift.kernels.positions import Positions
from keysift.models.language_model import LanguageModel
from keysift.models.multiscreen import Multiscreen, MultiscreenConfig
from keysift.models.transformer import Transformer, TransformerConfig
from keysift.nn.inference import Inference
from keysift.nn.tap import trace
from tests.models import oracle

TINY = MultiscreenConfig(vocab_size=9, depth=2, tiles=3, width=6, key_width=4, value_width=3)


def perturbed_multiscreen(config: MultiscreenConfig, seed: int = 0, windows: tuple[float, ...] = ()) -> Multiscreen:
    """A Multiscreen whose tiles accept many keys and change the residual stream by about its own norm.

    With the paper's initial values almost every relevance is zero, so a wrong tile would hardly change the logits.
    """
    generator = torch.Generator().manual_seed(seed)
    model = Multiscreen(config, generator)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("s_r"):
                parameter.copy_(2.5 + 0.5 * noise)
            elif name.endswith("s_w"):
                parameter.add_(0.3 * noise)
            elif name.endswith("s_O"):
                parameter.copy_(2.5 + 0.2 * noise)
            elif parameter.ndim < 2:
                parameter.add_(0.2 * noise)
            else:
                parameter.copy_(noise / math.sqrt(parameter.shape[1]))
            if name.endswith("s_w") and windows:
                parameter.copy_(torch.tensor([windows[h % len(windows)] - 1 for h in range(config.tiles)]).log())
    return model


def perturbed_transformer(config: TransformerConfig, seed: int = 0) -> Transformer:
    """A Transformer with noise added to every parameter, so that ignoring one changes the logits."""
    generator = torch.Generator().manual_seed(seed)
    model = Transformer(config, generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def tokens_for(model: LanguageModel, batch: int, length: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, model.config.vocab_size, (batch, length), generator=generator)


def positions_from(start: int, tokens: Tensor) -> Positions:
    """Consecutive positions from `start`, for every row."""
    return Positions.counted(tokens.shape[1], start=start)


def accepts_many_keys(model: LanguageModel, tokens: Tensor, at_least: float = 0.1, **options: Any) -> None:
    """At least `at_least` of the earlier keys have a non-zero weight, so that a comparison is not one of zeros."""
    with torch.no_grad(), trace(model, "layers.*.relevance") as traced:
        model(tokens, **options)
    for name, weights in traced.items():
        earlier_weights = weights.tril(-1)
        fraction = (earlier_weights != 0).double().sum() / max(
            1.0, float(torch.ones_like(earlier_weights).tril(-1).sum())
        )
        assert fraction >= at_least, f"{name}: only {fraction:.1%} of the earlier keys are accepted"


def _agree(model: LanguageModel, ours: Tensor, theirs: Tensor, state: dict[str, Tensor], seed: int) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    output_gradient = torch.randn(ours.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    names = [name for name, _ in model.named_parameters()]
    our_gradients = torch.autograd.grad(
        (ours * output_gradient).sum(), [p for _, p in model.named_parameters()], materialize_grads=True
    )
    their_gradients = torch.autograd.grad((theirs * output_gradient).sum(), [state[name] for name in names])
    for name, a, b in zip(names, our_gradients, their_gradients, strict=True):
        assert bool((b != 0).any()), f"the oracle gives {name} no gradient; choose inputs that reach it"
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9, msg=lambda text, name=name: f"d/d {name}: {text}")


def multiscreen_matches_oracle(
    config: MultiscreenConfig = TINY,
    *,
    inference: Inference | None = None,
    start: int = 3,
    seed: int = 0,
    windows: tuple[float, ...] = (2.5, 6.0, 9.3),
    length: int = 8,
) -> None:
    model = perturbed_multiscreen(config, seed, windows).double()
    tokens = tokens_for(model, 1, length, seed)
    options = inference or Inference()
    state = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    theirs, count = oracle.multiscreen(
        state,
        tokens[0].tolist(),
        depth=config.depth,
        tiles=config.tiles,
        key_width=config.key_width,
        value_width=config.value_width,
        position=config.position,
        w_th=config.window_threshold,
        norm=config.norm,
        acceptance=None if config.acceptance == "learned" else config.acceptance,
        expand=options.expand_windows or None,
        factor=options.rope_factor,
        start=start,
    )
    assert count.fraction > 0.4, f"only {count.fraction:.1%} of the pairs have relevance above zero"
    _agree(model, model(tokens, positions=positions_from(start, tokens), inference=options)[0], theirs, state, seed)


def transformer_matches_oracle(
    config: TransformerConfig, *, factor: float = 1.0, start: int = 3, seed: int = 0
) -> None:
    model = perturbed_transformer(config, seed).double()
    tokens = tokens_for(model, 1, 6, seed)
    state = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    theirs = oracle.transformer(
        state,
        tokens[0].tolist(),
        depth=config.depth,
        heads=config.heads,
        width=config.width,
        key_heads=config.key_heads or config.heads,
        rope=config.position == "rope",
        theta=config.rope_theta,
        factor=factor,
        start=start,
    )
    ours = model(tokens, positions=positions_from(start, tokens), inference=Inference(rope_factor=factor))[0]
    _agree(model, ours, theirs, state, seed)


def close(ours: Tensor, theirs: Tensor) -> None:
    """Equal up to fp32 rounding, measured against the largest logit."""
    error = (ours - theirs).abs().max() / theirs.abs().max()
    assert error < 2e-5, f"differs by {error:.1e} of the largest logit"


@torch.no_grad()
def cache_matches_forward(
    model: LanguageModel,
    chunks: tuple[int, ...],
    *,
    batch: int = 2,
    start: int = 0,
    inference: Inference | None = None,
    seed: int = 1,
) -> None:
    """Any chunking of a text through a cache gives the logits of one forward pass."""
    tokens = tokens_for(model, batch, sum(chunks), seed)
    full = model(tokens, positions=positions_from(start, tokens), inference=inference)
    cache = model.cache(batch, start=start, inference=inference)
    pieces = [model(piece, cache=cache) for piece in tokens.split(chunks, dim=1)]
    close(torch.cat(pieces, dim=1), full)


@torch.no_grad()
def is_causal_in_bf16(length: int = 700) -> None:
    """In bf16 a token changes no earlier logit, bit for bit, and does change its own.

    Changing only the last token would not be enough: bf16 rounds 699 to 700 and 698 to 696, so it leaks to no query.
    """
    config = dataclasses.replace(TINY, depth=1)
    model = perturbed_multiscreen(config, windows=(30.5, 300.0, 900.0)).bfloat16()
    tokens = tokens_for(model, 1, length)
    accepts_many_keys(model, tokens, at_least=0.02)
    before = model(tokens)
    for index in (length - 1, length - 3, 599, 258):
        altered = tokens.clone()
        altered[:, index] = (altered[:, index] + 1) % config.vocab_size
        after = model(altered)
        assert torch.equal(before[:, :index], after[:, :index]), f"token {index} changed an earlier logit"
        assert not torch.equal(before[:, index], after[:, index]), f"token {index} did not change its own logits"


@torch.no_grad()
def window_expansion_agrees() -> None:
    """Decoding with a cache and the full forward pass agree, with and without window expansion."""
    model = perturbed_multiscreen(TINY, windows=(2.5, 6.0, 9.3))
    tokens = tokens_for(model, 1, 30)
    choices = (Inference(), Inference(expand_windows=5))
    plain, wide = (model(tokens, inference=choice) for choice in choices)
    assert (plain - wide).abs().max() > 1e-3, "window expansion changes nothing here"
    for choice, full in zip(choices, (plain, wide), strict=True):
        cache = model.cache(1, inference=choice)
        close(torch.cat([model(tokens[:, i : i + 1], cache=cache) for i in range(30)], dim=1), full)
    beyond_all = model(tokens, inference=Inference(expand_windows=10))
    assert torch.equal(beyond_all, plain), "a window within the training length was expanded"


@torch.no_grad()
def mipe_matches_formula(at: tuple[int, ...] = (1, 2, 5, 300)) -> None:
    """MiPE rotates query and key against each other by pi d gamma(w) / w, at distance d and window w."""
    w = 6.0
    config = dataclasses.replace(TINY, depth=1, tiles=1, acceptance=1.0)
    model, unrotated = (
        perturbed_multiscreen(config, windows=(w,)),
        perturbed_multiscreen(dataclasses.replace(config, position="none"), windows=(w,)),
    )
    tokens = tokens_for(model, 1, 2)
    gamma = (math.cos(math.pi * w / 256) + 1) / 2
    moved = False
    for start in at:
        with trace(model, "*.relevance") as rotated, trace(unrotated, "*.relevance") as plain:
            (
                model(tokens, positions=positions_from(start, tokens)),
                unrotated(tokens, positions=positions_from(start, tokens)),
            )
        a, b = rotated["layers.0.tiles.relevance"], plain["layers.0.tiles.relevance"]
        q, k = (torch.nn.functional.normalize(p, dim=-1) for p in _first_queries_and_keys(model, tokens))
        angle = math.pi * gamma / w
        c, s = math.cos(angle), math.sin(angle)
        cosine = (q[0] * c - q[1] * s) * k[0] + (q[0] * s + q[1] * c) * k[1] + (q[2:] * k[2:]).sum()
        expected = max(float(cosine), 0.0) ** 2 * (math.cos(math.pi / w) + 1) / 2
        assert abs(float(a[0, 0, 1, 0]) - expected) < 1e-5, f"the rotation at position {start} differs from the paper's"
        moved = moved or float((a - b).abs().max()) > 1e-3
    assert moved, "the rotation changed no relevance: the positions are too small"


def _first_queries_and_keys(model: Multiscreen, tokens: Tensor) -> tuple[Tensor, Tensor]:
    x = model.embed_rows(model.embedding(tokens))
    tiles = model.layers[0].tiles
    return tiles.q_proj(x)[0, 1], tiles.k_proj(x)[0, 0]
