"""Faults found in public ports of Multiscreen, seeded one at a time: each must turn a check of this suite red.

The checks are the functions the tests of tests/models/ call; here they run on a broken model.
"""

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from keysift.kernels.positions import Positions
from keysift.mechanisms import screening
from keysift.models import language, presets
from keysift.nn import cache as caches
from keysift.nn import embedding, read, scalars, store, tile
from keysift.nn.inference import Inference
from tests.machine import needs_kernel
from tests.models import checks, test_cache, test_documents
from tests.models.checks import TINY, opened, tokens_for
from tests.models.counts import TABLE

Patch = pytest.MonkeyPatch


def short_steps() -> None:
    checks.cache_matches_forward(opened(TINY, windows=(2.5, 6.0, 9.3)), (7, 1, 1, 4))


def steps_past_the_rings() -> None:
    checks.cache_matches_forward(opened(TINY, windows=(2.5, 6.0, 9.3)), (12, 1, 1, 4))


def oracle() -> None:
    checks.multiscreen_matches_oracle()


def far_oracle() -> None:
    checks.multiscreen_matches_oracle(start=1000)


def mipe_without_pi(patch: Patch) -> None:
    rate = screening.mipe_rate
    patch.setattr(screening, "mipe_rate", lambda window: rate(window) / math.pi)


def moved(patch: Patch, change: Callable[[Tensor], Tensor]) -> None:
    """Positions of queries and keys changed before anything reads them; runs are then no runs any more."""
    placed = language._placed

    def wrong(tokens: Tensor, given: Positions | None, keep: Tensor | None) -> Positions:
        right = placed(tokens, given, keep)
        return Positions.explicit(change(right.of_queries(tokens.device)), change(right.of_keys(tokens.device)))

    patch.setattr(language, "_placed", wrong)


def positions_wrapped(patch: Patch) -> None:
    """Modulo a training length of 6 that the text passes."""
    moved(patch, lambda at: at % 6)


def positions_in_bf16(patch: Patch) -> None:
    moved(patch, lambda at: at.bfloat16().long())


def reading_at(patch: Patch, change: Callable[[Positions], Positions]) -> None:
    attend = read.attend

    def wrong(mechanism: object, q: Tensor, k: Tensor, v: Tensor, *, positions: Positions, **rest: object) -> object:
        return attend(mechanism, q, k, v, positions=change(positions), **rest)

    patch.setattr(read, "attend", wrong)


def mask_in_bf16(patch: Patch) -> None:
    """Which key lies before the query is decided on rounded positions; the angles stay exact."""
    device = torch.device("cpu")
    reading_at(
        patch,
        lambda right: Positions.explicit(
            right.of_queries(device).bfloat16().long(), right.of_keys(device).bfloat16().long()
        ),
    )


def causal_mask_top_left(patch: Patch) -> None:
    """With fewer queries than keys the first query stands on the first key."""
    reading_at(patch, lambda right: dataclasses.replace(right, first=right.key_first))


def documents_forgotten(patch: Patch) -> None:
    """Packed documents see each other, on every backend."""
    reading_at(patch, lambda right: Positions.counted(right.queries, right.keys))


def pieces_one_key_short(patch: Patch) -> None:
    """The last key of each document is lost to the kernel that reads in pieces."""
    reading_at(patch, lambda right: dataclasses.replace(right, pieces=_shorter(right.pieces)))


def _shorter(pieces: Tensor | None) -> Tensor | None:
    return None if pieces is None else pieces - torch.tensor([0, 0, 0, 0, 1, 0])


def no_gradient_for(name: str) -> Callable[[Patch], None]:
    def fault(patch: Patch) -> None:
        stored = scalars.Scalars.stored

        def detached(self: scalars.Scalars, inference: Inference) -> dict[str, Tensor]:
            return {n: value.detach() if n == name else value for n, value in stored(self, inference).items()}

        patch.setattr(scalars.Scalars, "stored", detached)

    return fault


def residual_projected(patch: Patch) -> None:
    """Only the part of dx orthogonal to x is added."""

    def forward(self: tile.Layer, x: Tensor, reading: object, store: object) -> Tensor:
        dx = self.tiles(x, reading, store)
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

    in_order = store.Store._in_order

    def unturned(self: store.Store, lengths: list[int]) -> store.InOrder:
        right = in_order(self, lengths)
        lying = in_order(self, [min(length, self.widest) for length in lengths])
        return dataclasses.replace(right, entries=lying.entries)

    patch.setattr(store.Store, "_in_order", unturned)


def ragged_rows_called_even(patch: Patch) -> None:
    patch.setattr(store.Append, "even", True)


def padding_counted(patch: Patch) -> None:
    """Padding takes a position, so rows stand where their columns do."""
    masked = Positions.masked

    def wrong(keep: Tensor, *, start: object = 0) -> Positions:
        right = masked(keep, start=start)
        if right.at is None:
            return right
        at = right.at + (~keep).sum(1)[:, None, None] * (torch.arange(keep.shape[1]) % 2)
        return dataclasses.replace(right, at=at, pieces=None)

    patch.setattr(Positions, "masked", wrong)


def padded_rows() -> None:
    test_cache.test_left_padding((test_cache.multiscreen(), Inference()))


def packed_documents() -> None:
    test_documents.check(opened(dataclasses.replace(TINY, vocab_size=11)))


def ring_too_short(patch: Patch) -> None:
    reach = scalars.Scalars.reach
    patch.setattr(scalars.Scalars, "reach", lambda self, inference: [max(1.0, r - 1) for r in reach(self, inference)])


def wrong_counts(patch: Patch) -> None:
    preset = presets.PRESETS.find("multiscreen-psi8")
    without_gate = dataclasses.replace(preset, arch=dataclasses.replace(preset.arch, gate=False))
    patch.setitem(presets.PRESETS._items, "multiscreen-psi8", without_gate)


def documented_counts() -> None:
    assert presets.PRESETS.find("multiscreen-psi8").counts()[0] == TABLE["multiscreen-psi8"]


def swe_at_the_training_length() -> None:
    checks.multiscreen_matches_oracle(inference=Inference(expand_windows=6))


FAULTS: list[tuple[Callable[[Patch], None], Callable[[], None]] | pytest.ParameterSet] = [
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
    (ring_read_as_it_lies, steps_past_the_rings),
    (ragged_rows_called_even, padded_rows),
    (padding_counted, padded_rows),
    (documents_forgotten, packed_documents),
    pytest.param(pieces_one_key_short, packed_documents, marks=needs_kernel),
    (wrong_counts, documented_counts),
]
CHECKS = dict.fromkeys(getattr(pair, "values", pair)[1] for pair in FAULTS)  # marks stand beside some


def _label(value: object) -> str:
    return getattr(value, "__qualname__", str(value)).replace("<locals>.", "")


@pytest.mark.parametrize(("fault", "check"), FAULTS, ids=_label)
def test_a_seeded_fault_turns_its_check_red(
    fault: Callable[[Patch], None], check: Callable[[], None], monkeypatch: Patch
) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check()


@pytest.mark.parametrize("check", CHECKS, ids=_label)
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
