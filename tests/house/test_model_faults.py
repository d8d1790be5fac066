"""Faults found in public ports of Multiscreen, seeded one at a time: each must turn a check of this suite red.

The checks are the functions the tests of tests/models/ call; here they run on a broken model.
"""

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from keysift.mechanisms import screening
from keysift.models import language, presets
from keysift.nn import cache as caches
from keysift.nn import embedding, read, scalars, store, tile
from keysift.nn.inference import Inference
from tests.models import checks, test_cache
from tests.models.checks import TINY, opened, tokens_for
from tests.models.counts import TABLE

Patch = pytest.MonkeyPatch


def short_steps() -> None:
    checks.cache_matches_forward(opened(TINY, windows=(2.5, 6.0, 9.3)), (7, 1, 1, 4))


def oracle() -> None:
    checks.multiscreen_matches_oracle()


def far_oracle() -> None:
    checks.multiscreen_matches_oracle(start=1000)


def mipe_without_pi(patch: Patch) -> None:
    rate = screening.mipe_rate
    patch.setattr(screening, "mipe_rate", lambda window: rate(window) / math.pi)


def positions_wrapped(patch: Patch) -> None:
    """Modulo a training length of 6 that the text passes."""
    place = language._positions
    patch.setattr(language, "_positions", lambda tokens, keep, start: place(tokens, keep, start) % 6)


def positions_in_bf16(patch: Patch) -> None:
    place = language._positions

    def rounded(tokens: Tensor, keep: Tensor | None, start: int) -> Tensor:
        return place(tokens, keep, start).bfloat16().long()

    patch.setattr(language, "_positions", rounded)


def mask_in_bf16(patch: Patch) -> None:
    """Which key lies before the query is decided on rounded positions; the angles stay exact."""
    attend = read.attend

    def leaking(
        mechanism: object, q: Tensor, k: Tensor, v: Tensor, *, at: Tensor, key_at: Tensor, **rest: object
    ) -> object:
        return attend(mechanism, q, k, v, at=at.bfloat16().long(), key_at=key_at.bfloat16().long(), **rest)

    patch.setattr(read, "attend", leaking)


def causal_mask_top_left(patch: Patch) -> None:
    """With fewer queries than keys the first query stands on the first key."""
    attend = read.attend

    def aligned(
        mechanism: object, q: Tensor, k: Tensor, v: Tensor, *, at: Tensor, key_at: Tensor, **rest: object
    ) -> object:
        return attend(mechanism, q, k, v, at=at - at.min() + key_at.clamp_min(0).min(), key_at=key_at, **rest)

    patch.setattr(read, "attend", aligned)


def no_gradient_for(name: str) -> Callable[[Patch], None]:
    def fault(patch: Patch) -> None:
        stored = scalars.Scalars.stored

        def detached(self: scalars.Scalars, inference: Inference) -> dict[str, Tensor]:
            return {n: value.detach() if n == name else value for n, value in stored(self, inference).items()}

        patch.setattr(scalars.Scalars, "stored", detached)

    return fault


def residual_projected(patch: Patch) -> None:
    """Only the part of dx orthogonal to x is added."""

    def forward(self: tile.Layer, x: Tensor, span: object, store: object) -> Tensor:
        dx = self.tiles(x, span, store)
        along = (dx * x).sum(-1, keepdim=True) / x.square().sum(-1, keepdim=True)
        return x + dx - along * x

    patch.setattr(tile.Layer, "forward", forward)


def final_norm(patch: Patch) -> None:
    readout = embedding.UnitEmbedding.readout

    def normed(self: embedding.UnitEmbedding, x: Tensor) -> Tensor:
        return readout(self, x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))

    patch.setattr(embedding.UnitEmbedding, "readout", normed)


def expansion_only_in_generation(patch: Patch) -> None:
    """A cache that expands windows though nobody asked."""
    init = caches.Cache.__init__

    def expanding(self: caches.Cache, stores: list[object], batch: int, **rest: object) -> None:
        wide = [type(store)([math.inf] * len(store.limits), batch, 0) for store in stores]
        init(self, wide, batch, **(rest | {"inference": Inference(expand_windows=1)}))

    patch.setattr(caches.Cache, "__init__", expanding)


def expansion_only_in_evaluation(patch: Patch) -> None:
    init = caches.Cache.__init__

    def plain(self: caches.Cache, stores: list[object], batch: int, **rest: object) -> None:
        init(self, stores, batch, **(rest | {"inference": Inference()}))

    patch.setattr(caches.Cache, "__init__", plain)


def expansion_of_every_window(patch: Patch) -> None:
    """At or above the training length instead of strictly above."""
    stored = scalars.Scalars.stored

    def eager(self: scalars.Scalars, inference: Inference) -> dict[str, Tensor]:
        values = stored(self, inference)
        if inference.expand_windows is not False:
            values["reach"] = torch.full_like(values["window"], math.inf)
        return values

    patch.setattr(scalars.Scalars, "stored", eager)


def window_off_by_one(patch: Patch) -> None:
    fade = screening.fade
    patch.setattr(screening, "fade", lambda distance, window: fade(distance, window + 1))


def ring_read_as_it_lies(patch: Patch) -> None:
    """Slots in their own order, although the text has gone round."""

    def unturned(self: store.Store, end: int) -> store.Held:
        width = min(self.widest, end)
        return store.Held(self._held(width).entries, None, end - width)

    patch.setattr(store.Store, "_in_order", unturned)


def ragged_rows_called_even(patch: Patch) -> None:
    measure = caches.Cache._measure

    def wrong(self: caches.Cache) -> None:
        measure(self)
        self._even = True

    patch.setattr(caches.Cache, "_measure", wrong)


def padded_rows() -> None:
    test_cache.test_left_padding((test_cache.multiscreen(), Inference()))


def ring_too_short(patch: Patch) -> None:
    reach = scalars.Scalars.reach
    patch.setattr(scalars.Scalars, "reach", lambda self, inference: [max(1.0, r - 1) for r in reach(self, inference)])


def wrong_counts(patch: Patch) -> None:
    psi = presets.MultiscreenConfig.psi(8, vocab_size=50_257)
    preset = presets.PRESETS.find("multiscreen-psi8")
    patch.setitem(
        presets.PRESETS._items,
        "multiscreen-psi8",
        dataclasses.replace(preset, config=dataclasses.replace(psi, gate=False)),
    )


def documented_counts() -> None:
    assert presets.PRESETS.find("multiscreen-psi8").counts()[0] == TABLE["multiscreen-psi8"]


def swe_at_the_training_length() -> None:
    checks.multiscreen_matches_oracle(inference=Inference(expand_windows=6))


FAULTS: list[tuple[Callable[[Patch], None], Callable[[], None]]] = [
    (mipe_without_pi, checks.positions_matter),
    (mipe_without_pi, oracle),
    (positions_wrapped, oracle),
    (positions_in_bf16, checks.no_future_in_bf16),
    (mask_in_bf16, checks.no_future_in_bf16),
    (mask_in_bf16, far_oracle),
    (causal_mask_top_left, short_steps),
    (no_gradient_for("window"), oracle),
    (no_gradient_for("acceptance"), oracle),
    (residual_projected, oracle),
    (final_norm, oracle),
    (expansion_only_in_generation, checks.swe_is_shared),
    (expansion_only_in_evaluation, checks.swe_is_shared),
    (expansion_of_every_window, swe_at_the_training_length),
    (window_off_by_one, oracle),
    (ring_too_short, short_steps),
    (ring_read_as_it_lies, short_steps),
    (ragged_rows_called_even, padded_rows),
    (wrong_counts, documented_counts),
]


def _label(value: object) -> str:
    return getattr(value, "__qualname__", str(value)).replace("<locals>.", "")


@pytest.mark.parametrize(("fault", "check"), FAULTS, ids=_label)
def test_a_seeded_fault_turns_its_check_red(
    fault: Callable[[Patch], None], check: Callable[[], None], monkeypatch: Patch
) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check()


@pytest.mark.parametrize("check", dict.fromkeys(check for _, check in FAULTS), ids=_label)
def test_the_checks_are_green_without_a_fault(check: Callable[[], None]) -> None:
    check()


def test_a_causality_check_on_closed_inputs_refuses_to_pass() -> None:
    """At the paper's start almost every relevance is zero, and zeros leak nothing: such inputs prove nothing."""
    model = opened(TINY)
    with torch.no_grad():
        for layer in model.layers:
            layer.scalars.s_r.fill_(-20.0)
    with pytest.raises(AssertionError, match=r"only 0\.0% of the earlier keys are accepted"):
        checks.is_open(model, tokens_for(model, 1, 30))


def test_a_rotation_check_that_sees_no_rotation_refuses_to_pass(monkeypatch: Patch) -> None:
    """An identity test at position 0 cannot fail; with the rotation away, ours does, wherever it starts."""
    monkeypatch.setattr(screening, "turn", lambda x, turns: x)
    with pytest.raises(AssertionError):
        checks.positions_matter(at=(0,))
