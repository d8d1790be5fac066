"""Faults found in public ports of Multiscreen, seeded one at a time: each must fail a check of this suite.

The tests of tests/models/ call the same checks. Here the checks run on a model with a fault.
"""

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from keysift.kernels.attend import Choice
from keysift.kernels.positions import Positions
from keysift.mechanisms import screening
from keysift.mechanisms.spec import Mechanism, Site
from keysift.models import language_model as language
from keysift.models import presets
from keysift.nn import cache as caches
from keysift.nn import cached_attention, embedding, fused_tiles, layer_cache, scalars, tile
from keysift.nn.inference import Inference
from tests.machine import needs_kernel
from tests.models import checks, test_cache, test_documents
from tests.models.checks import TINY, perturbed_multiscreen, tokens_for
from tests.models.counts import TABLE

Patch = pytest.MonkeyPatch


def short_steps() -> None:
    checks.cache_matches_forward(perturbed_multiscreen(TINY, windows=(2.5, 6.0, 9.3)), (7, 1, 1, 4))


def steps_past_the_rings() -> None:
    checks.cache_matches_forward(perturbed_multiscreen(TINY, windows=(2.5, 6.0, 9.3)), (12, 1, 1, 4))


def oracle() -> None:
    checks.multiscreen_matches_oracle()


def far_oracle() -> None:
    checks.multiscreen_matches_oracle(start=1000)


def mipe_without_pi(patch: Patch) -> None:
    rate = screening.mipe_rate
    patch.setattr(screening, "mipe_rate", lambda window, threshold: rate(window, threshold) / math.pi)


def change_positions(patch: Patch, change: Callable[[Tensor], Tensor]) -> None:
    """Change the positions of queries and keys before any module reads them. They are explicit afterwards."""
    token_positions = language._token_positions

    def wrong(tokens: Tensor, given: Positions | None, keep: Tensor | None) -> Positions:
        positions = token_positions(tokens, given, keep)
        return Positions.explicit(
            change(positions.query_positions(tokens.device)), change(positions.key_positions(tokens.device))
        )

    patch.setattr(language, "_token_positions", wrong)


def positions_wrapped(patch: Patch) -> None:
    """Modulo a training length of 6, which the text exceeds."""
    change_positions(patch, lambda at: at % 6)


def positions_in_bf16(patch: Patch) -> None:
    change_positions(patch, lambda at: at.bfloat16().long())


def change_attend_positions(patch: Patch, change: Callable[[Positions], Positions]) -> None:
    """Change the positions that `attend` and the operator of a whole layer get."""
    make_call = cached_attention.make_call

    def wrong(mechanism: object, q: Tensor, k: Tensor, v: Tensor, *, positions: Positions, **options: object) -> object:
        return make_call(mechanism, q, k, v, positions=change(positions), **options)

    patch.setattr(cached_attention, "make_call", wrong)
    explain_tiles, make_tile_call = fused_tiles.explain_tiles, fused_tiles.make_tile_call

    def explain_wrong(mechanism: Mechanism, site: Site, like: Tensor, positions: Positions) -> Choice:
        return explain_tiles(mechanism, site, like, change(positions))

    def wrong_tiles(*inputs: object, positions: Positions, **options: object) -> object:
        return make_tile_call(*inputs, positions=change(positions), **options)

    patch.setattr(fused_tiles, "explain_tiles", explain_wrong)
    patch.setattr(fused_tiles, "make_tile_call", wrong_tiles)


def mask_in_bf16(patch: Patch) -> None:
    """The causal mask is computed from rounded positions; the angles stay exact."""
    device = torch.device("cpu")
    change_attend_positions(
        patch,
        lambda right: Positions.explicit(
            right.query_positions(device).bfloat16().long(), right.key_positions(device).bfloat16().long()
        ),
    )


def causal_mask_top_left(patch: Patch) -> None:
    """With fewer queries than keys the first query is at the position of the first key."""
    change_attend_positions(patch, lambda right: dataclasses.replace(right, first=right.key_first))


def documents_not_isolated(patch: Patch) -> None:
    """Packed documents attend to each other, on every backend."""
    change_attend_positions(patch, lambda right: Positions.counted(right.queries, right.keys))


def segments_one_key_short(patch: Patch) -> None:
    """The segments of the compiled kernel lack the last key of each document."""
    change_attend_positions(patch, lambda right: dataclasses.replace(right, segments=_shorter(right.segments)))


def _shorter(segments: Tensor | None) -> Tensor | None:
    return None if segments is None else segments - torch.tensor([0, 0, 0, 0, 1, 0])


def no_gradient_for(name: str) -> Callable[[Patch], None]:
    def fault(patch: Patch) -> None:
        linked = scalars.MechanismScalars.linked

        def detached(self: scalars.MechanismScalars, inference: Inference) -> dict[str, Tensor]:
            return {n: value.detach() if n == name else value for n, value in linked(self, inference).items()}

        patch.setattr(scalars.MechanismScalars, "linked", detached)

    return fault


def residual_projected(patch: Patch) -> None:
    """Only the part of dx orthogonal to x is added."""

    def forward(self: tile.Layer, x: Tensor, context: object, layer_cache: object) -> Tensor:
        dx = self.tiles(x, context, layer_cache)
        along = (dx * x).sum(-1, keepdim=True) / x.square().sum(-1, keepdim=True)
        return x + dx - along * x

    patch.setattr(tile.Layer, "forward", forward)


def final_norm(patch: Patch) -> None:
    scale_outputs = embedding.UnitEmbedding.scale_outputs

    def normed(self: embedding.UnitEmbedding, x: Tensor) -> Tensor:
        return scale_outputs(self, x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))

    patch.setattr(embedding.UnitEmbedding, "scale_outputs", normed)


def expansion_only_in_generation(patch: Patch) -> None:
    """A cache that expands windows although the settings do not."""
    init = caches.Cache.__init__

    def expanding(self: caches.Cache, layers: list[object], batch: int, **options: object) -> None:
        unbounded = [type(store)([math.inf] * len(store.limits), batch, 0) for store in layers]
        init(self, unbounded, batch, **(options | {"inference": Inference(expand_windows=1)}))

    patch.setattr(caches.Cache, "__init__", expanding)


def expansion_only_in_evaluation(patch: Patch) -> None:
    init = caches.Cache.__init__

    def plain(self: caches.Cache, layers: list[object], batch: int, **options: object) -> None:
        init(self, layers, batch, **(options | {"inference": Inference()}))

    patch.setattr(caches.Cache, "__init__", plain)


def expansion_of_every_window(patch: Patch) -> None:
    """Expands every window, not only those above the training length."""
    linked = scalars.MechanismScalars.linked

    def expand_all(self: scalars.MechanismScalars, inference: Inference) -> dict[str, Tensor]:
        values = linked(self, inference)
        if inference.expand_windows is not False:
            values["effective_window"] = torch.full_like(values["window"], math.inf)
        return values

    patch.setattr(scalars.MechanismScalars, "linked", expand_all)


def window_off_by_one(patch: Patch) -> None:
    fade = screening.fade
    patch.setattr(screening, "fade", lambda distance, window: fade(distance, window + 1))


def ring_read_in_memory_order(patch: Patch) -> None:
    """Slots of a ring buffer in memory order, although it has wrapped around."""

    in_order = layer_cache.LayerCache._in_order

    def memory_order(self: layer_cache.LayerCache, lengths: list[int]) -> layer_cache.CachedEntries:
        right = in_order(self, lengths)
        unrotated = in_order(self, [min(length, self.widest) for length in lengths])
        return dataclasses.replace(right, entries=unrotated.entries)

    patch.setattr(layer_cache.LayerCache, "_in_order", memory_order)


def ragged_rows_treated_as_even(patch: Patch) -> None:
    patch.setattr(layer_cache.CacheUpdate, "even", True)


def padding_counted(patch: Patch) -> None:
    """Padding takes up positions, so tokens are at the position of their column."""
    masked = Positions.masked

    def wrong(keep: Tensor, *, start: object = 0) -> Positions:
        right = masked(keep, start=start)
        if right.at is None:
            return right
        at = right.at + (~keep).sum(1)[:, None, None] * (torch.arange(keep.shape[1]) % 2)
        return dataclasses.replace(right, at=at, segments=None)

    patch.setattr(Positions, "masked", wrong)


def padded_rows() -> None:
    test_cache.test_left_padding((test_cache.multiscreen(), Inference()))


def packed_documents() -> None:
    test_documents.check(perturbed_multiscreen(dataclasses.replace(TINY, vocab_size=11)))


def ring_too_short(patch: Patch) -> None:
    windows = scalars.MechanismScalars.windows
    patch.setattr(
        scalars.MechanismScalars, "windows", lambda self, inference: [max(1.0, w - 1) for w in windows(self, inference)]
    )


def wrong_counts(patch: Patch) -> None:
    preset = presets.PRESETS.find("multiscreen-psi8")
    without_gate = dataclasses.replace(preset, arch=dataclasses.replace(preset.arch, gate=False))
    patch.setitem(presets.PRESETS._items, "multiscreen-psi8", without_gate)


def documented_counts() -> None:
    assert presets.PRESETS.find("multiscreen-psi8").counts()[0] == TABLE["multiscreen-psi8"]


def expansion_at_the_training_length() -> None:
    checks.multiscreen_matches_oracle(inference=Inference(expand_windows=6))


FAULTS: list[tuple[Callable[[Patch], None], Callable[[], None]] | pytest.ParameterSet] = [
    (mipe_without_pi, checks.mipe_matches_formula),
    (mipe_without_pi, oracle),
    (positions_wrapped, oracle),
    (positions_in_bf16, checks.is_causal_in_bf16),
    (mask_in_bf16, checks.is_causal_in_bf16),
    (mask_in_bf16, far_oracle),
    (causal_mask_top_left, short_steps),
    (no_gradient_for("window"), oracle),
    (no_gradient_for("acceptance"), oracle),
    (residual_projected, oracle),
    (final_norm, oracle),
    (expansion_only_in_generation, checks.window_expansion_agrees),
    (expansion_only_in_evaluation, checks.window_expansion_agrees),
    (expansion_of_every_window, expansion_at_the_training_length),
    (window_off_by_one, oracle),
    (ring_too_short, short_steps),
    (ring_read_in_memory_order, steps_past_the_rings),
    (ragged_rows_treated_as_even, padded_rows),
    (padding_counted, padded_rows),
    (documents_not_isolated, packed_documents),
    pytest.param(segments_one_key_short, packed_documents, marks=needs_kernel),
    (wrong_counts, documented_counts),
]
CHECKS = dict.fromkeys(getattr(pair, "values", pair)[1] for pair in FAULTS)  # some have marks


def _label(value: object) -> str:
    return getattr(value, "__qualname__", str(value)).replace("<locals>.", "")


@pytest.mark.parametrize(("fault", "check"), FAULTS, ids=_label)
def test_a_fault_fails_its_check(fault: Callable[[Patch], None], check: Callable[[], None], monkeypatch: Patch) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check()


@pytest.mark.parametrize("check", CHECKS, ids=_label)
def test_the_checks_pass_without_a_fault(check: Callable[[], None]) -> None:
    check()


def test_a_causality_check_needs_nonzero_relevance() -> None:
    """At the paper's initialization almost every relevance is zero, so a leak would not show."""
    model = perturbed_multiscreen(TINY)
    with torch.no_grad():
        for layer in model.layers:
            layer.scalars.s_r.fill_(-20.0)
    with pytest.raises(AssertionError, match=r"only 0\.0% of the earlier keys are accepted"):
        checks.accepts_many_keys(model, tokens_for(model, 1, 30))


def test_the_rotation_check_fails_without_rotation(monkeypatch: Patch) -> None:
    """A comparison at position 0 cannot fail: the rotation is the identity there. Ours compares at every start."""
    monkeypatch.setattr(screening, "rotate", lambda x, turns: x)
    with pytest.raises(AssertionError):
        checks.mipe_matches_formula(at=(0,))
