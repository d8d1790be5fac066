"""What it takes to keep each promise. `keeps(mechanism, promise, dtype)` is decided by trying.

A universal promise is judged by its worst violation over many open inputs: kept below rounding, refuted above
`REFUTED`, and anything between is an error, because a promise that is nearly kept is a fault in somebody's arithmetic.
An existential promise ("can ...") is kept if an input is found that keeps its behaviour in a ball around it.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from keysift.mechanisms.spec import Mechanism, Promise, Scalar
from tests.mechanisms.inputs import Numbers, draws, families, inputs, output_of_scores, scalar_grid

ROUNDING = {torch.float64: 1e-9, torch.float32: 2e-5}
REFUTED = 1e-3
BOUND = 2.0  # no bounded mechanism exceeds this at its probe scalars, every unbounded one does at 80 x the scores

Universal = Callable[[Mechanism, torch.dtype], float]
Existential = Callable[[Mechanism, torch.dtype], bool]


def keeps(mechanism: Mechanism, promise: Promise, dtype: torch.dtype) -> bool:
    if promise in EXISTS:
        return EXISTS[promise](mechanism, dtype)
    worst = WORST[promise](mechanism, dtype)
    assert worst == worst, f"{mechanism.name}: {promise.label} met NaN"
    assert not ROUNDING[dtype] < worst < REFUTED, f"{mechanism.name}: {promise.label} neither kept nor refuted: {worst}"
    return worst <= ROUNDING[dtype]


def sums_to_one(mechanism: Mechanism, dtype: torch.dtype) -> float:
    return max((d.weights().sum() - 1).abs().item() for d in draws(mechanism, dtype, keys=7, count=40))


def nonnegative(mechanism: Mechanism, dtype: torch.dtype) -> float:
    return max(-d.weights().min().clamp_max(0).item() for d in draws(mechanism, dtype, keys=7, count=40))


def bounded(mechanism: Mechanism, dtype: torch.dtype) -> float:
    worst = 0.0
    for scale in (1.0, 10.0, 80.0):
        for d in draws(mechanism, dtype, keys=7, count=24):
            d.maps = [scale * x for x in d.maps]
            worst = max(worst, d.weights().abs().max().item() - BOUND)
    return max(worst, 0.0)


def absolute(mechanism: Mechanism, dtype: torch.dtype) -> float:
    worst = 0.0
    for d in draws(mechanism, dtype, keys=7, count=40):
        few = torch.tensor([0, 2, 3, 5])
        worst = max(worst, (d.weights()[few] - d.weights(few)).abs().max().item())
        before = d.weights()[few]
        d.maps = [x.scatter(0, torch.tensor([1, 4, 6]), 2.5) for x in d.maps]
        worst = max(worst, (d.weights()[few] - before).abs().max().item())
    return worst


def refused_inert(mechanism: Mechanism, dtype: torch.dtype) -> float:
    worst, refused_any = 0.0, False
    for d in draws(mechanism, dtype, keys=9, count=60):
        w = d.weights()
        rest = torch.nonzero(w)[:, 0]
        if 0 < len(rest) < len(w):
            refused_any = True
            worst = max(worst, (w[rest] - d.weights(rest)).abs().max().item())
    return worst if refused_any else 1.0


def outside_hull(mechanism: Mechanism, dtype: torch.dtype, *, with_zero: bool) -> float:
    """How far the output leaves the hull in any of many directions: none for a point inside it."""
    worst = 0.0
    generator = torch.Generator().manual_seed(3)
    for case in inputs(mechanism, dtype, count=40):
        out, _ = case.attend()
        ways = torch.randn(case.v.shape[-1], 24, dtype=dtype, generator=generator)
        along, values = out @ ways, case.v @ ways
        for t in range(out.shape[2]):
            low, high = values[:, :, : t + 1].amin(2), values[:, :, : t + 1].amax(2)
            if with_zero:
                low, high = low.clamp_max(0), high.clamp_min(0)
            worst = max(worst, (along[:, :, t] - high).max().item(), (low - along[:, :, t]).max().item())
    return worst


def shift_variation(mechanism: Mechanism, dtype: torch.dtype) -> float:
    worst = 0.0
    for d in draws(mechanism, dtype, keys=7, count=40):
        for which in range(mechanism.maps):
            moved = d.weights(shift=(which, 0.7)) - d.weights(shift=(which, 0.0))
            worst = max(worst, moved.abs().max().item())
    return worst


def scale_variation(mechanism: Mechanism, dtype: torch.dtype) -> float:
    worst = 0.0
    for case in inputs(mechanism, dtype, count=20):
        before, _ = case.attend()
        case.q, case.k = 3.0 * case.q, 0.6 * case.k
        after, _ = case.attend()
        worst = max(worst, (after - before).abs().max().item())
    return worst


def future_leak(mechanism: Mechanism, dtype: torch.dtype) -> float:
    """Any difference counts, and one of the last bit is a leak."""
    worst, tested = 0.0, 0
    for case in inputs(mechanism, dtype, count=12):
        before, _ = case.attend()
        case.k, case.v = case.k.clone(), case.v.clone()
        case.k[:, :, -1], case.v[:, :, -1] = 2.0, -9.0
        after, _ = case.attend()
        if not torch.equal(before[:, :, :-1], after[:, :, :-1]):
            worst = 1.0
        tested += not torch.equal(before[:, :, -1], after[:, :, -1])
    assert tested >= 4, "the last query did not notice the change either, so nothing was tested"
    return worst


def accumulators(mechanism: Mechanism, dtype: torch.dtype) -> float:
    """Beyond two accumulators: with the row's length known, whatever keys come later, the weights of the keys already
    read must stay in a space of two dimensions, or their values cannot have been summed up yet."""
    worst = 0.0
    for d in draws(mechanism, dtype, keys=16, count=12, spread=0.7):
        read = []
        for other in draws(mechanism, dtype, keys=16, count=24, spread=1.2):
            other.maps = [torch.cat((x[:10], y[10:])) for x, y in zip(d.maps, other.maps, strict=True)]
            other.distance, other.scalars = d.distance, d.scalars
            read.append(other.weights()[:10])
        size = torch.linalg.svdvals(torch.stack(read))
        if size[0] > REFUTED:
            worst = max(worst, (size[2] / size[0]).item())
    return worst


def exact_zero(mechanism: Mechanism, dtype: torch.dtype) -> bool:
    def zeros(maps: list[Tensor]) -> Tensor:
        d.maps = maps
        return d.weights() == 0

    for d in draws(mechanism, dtype, keys=9, count=40):
        centre = d.maps
        if (zeros(centre) & _everywhere_near(zeros, centre)).any():
            return True
    return False


def blocks_skippable(mechanism: Mechanism, dtype: torch.dtype) -> bool:
    for case in inputs(mechanism, dtype, count=60):
        before, w = case.attend()
        # Every head must skip the block: a norm over all heads would pass on what one of them read.
        skipping = (w[0, :, :, 2:5] == 0).all(0).all(-1)
        skipping[:5] = False  # the block is not yet visible
        if not skipping.any():
            continue
        case.v = case.v.clone()
        case.v[:, :, 2:5] = 1e6
        after, _ = case.attend()
        assert torch.equal(before[:, :, skipping], after[:, :, skipping]), "a zero weight read its value"
        return True
    return False


def refuses(mechanism: Mechanism, dtype: torch.dtype, allowed: Callable[[Tensor, float, float], bool]) -> bool:
    """Some scalars and family of scores silence a row, whatever its length, in a whole ball around both."""
    v = {n: 0.5 + torch.rand(n, 4, dtype=dtype, generator=torch.Generator().manual_seed(n)) for n in (3, 5)}

    def silent(first: str, second: str, scalars: Numbers) -> bool:
        for n in v:
            rows = families(n, dtype)
            centre = [rows[first], rows[second]][: mechanism.maps]
            for radius in (0.02, 0.002):
                for maps, side in zip(_ball(centre, radius), (0, 1, -1, 1, -1), strict=True):
                    near = {name: _nudged(mechanism.scalar(name), x, side * radius) for name, x in scalars.items()}
                    out = output_of_scores(mechanism, maps, v[n], near)
                    if not allowed(out, radius, v[n].norm(dim=-1).max().item()):
                        return False
        return True

    names = list(families(3, dtype))
    return any(
        silent(first, second, scalars)
        for scalars in scalar_grid(mechanism)
        for first in names
        for second in (names if mechanism.maps == 2 else names[:1])
    )


def _nudged(scalar: Scalar, value: Tensor | float, by: float) -> float:
    return min(max(float(value) + by, scalar.above + (0 if scalar.above_allowed else 1e-6)), scalar.up_to)


def refuses_exactly(mechanism: Mechanism, dtype: torch.dtype) -> bool:
    return refuses(mechanism, dtype, lambda out, radius, size: bool((out == 0).all()))


def refuses_in_limit(mechanism: Mechanism, dtype: torch.dtype) -> bool:
    return refuses(mechanism, dtype, lambda out, radius, size: out.norm().item() <= 2.5 * radius * size)


def _ball(centre: list[Tensor], radius: float) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(5)
    moved = [
        [x + radius * (2 * torch.rand(x.shape, dtype=x.dtype, generator=generator) - 1) for x in centre]
        for _ in range(4)
    ]
    return [centre, *moved]


def _everywhere_near(holds: Callable[[list[Tensor]], Tensor], centre: list[Tensor]) -> Tensor:
    return torch.stack([holds(maps) for maps in _ball(centre, 1e-4)]).all(0)


WORST: dict[Promise, Universal] = {
    Promise.SUMS_TO_ONE: sums_to_one,
    Promise.NONNEGATIVE: nonnegative,
    Promise.BOUNDED: bounded,
    Promise.ABSOLUTE: absolute,
    Promise.REFUSED_INERT: refused_inert,
    Promise.CONVEX_HULL: lambda mechanism, dtype: outside_hull(mechanism, dtype, with_zero=False),
    Promise.HULL_WITH_ZERO: lambda mechanism, dtype: outside_hull(mechanism, dtype, with_zero=True),
    Promise.SHIFT_INVARIANT: shift_variation,
    Promise.SCALE_INVARIANT: scale_variation,
    Promise.CAUSAL: future_leak,
    Promise.SINGLE_PASS: accumulators,
}
EXISTS: dict[Promise, Existential] = {
    Promise.EXACT_ZERO: exact_zero,
    Promise.BLOCKS_SKIPPABLE: blocks_skippable,
    Promise.REFUSES_EXACTLY: refuses_exactly,
    Promise.REFUSES_IN_LIMIT: refuses_in_limit,
}
assert set(WORST) | set(EXISTS) == set(Promise), "a promise nobody checks"
