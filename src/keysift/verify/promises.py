"""Check the promises of mechanisms by experiment: every verdict comes with the input that shows it.

A universal promise is decided by its worst violation over many inputs: confirmed below rounding error, refuted above
`REFUTED`, and undecided in between, where a numerical fault is likely. An existential promise ("can ...") is confirmed
by an input that shows the behaviour in a whole ball around it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from keysift.mechanisms.spec import Mechanism, Promise, Scalar
from keysift.verify.probes import ScalarValues, draws, families, inputs, output_of_scores, scalar_grid

ROUNDING = {torch.float64: 1e-9, torch.float32: 2e-5}
REFUTED = 1e-3
BOUND = 2.0  # bounded mechanisms stay below this at their probe scalars; unbounded ones exceed it at 80 x the scores
# Small enough to test a limit: a norm with an eps of 1e-8 under its root has a slope of 1e4 at zero.
LIMIT_RADIUS, LIMIT = 1e-8, 1e-3


@dataclass(frozen=True)
class Verdict:
    """Result of checking a promise: kept, refuted or undecided (None), with the input that shows it."""

    promise: Promise
    kept: bool | None
    example: str


@dataclass
class Worst:
    """The largest violation found, and its input."""

    size: float = 0.0
    where: str = ""

    def update(self, size: float, where: str, *shown: object) -> None:
        """Record a violation if it is the largest. `where` is a format string for the values in `shown`."""
        if size > self.size or size != size:
            self.size = size
            self.where = where.format(*(numbers(x) if isinstance(x, Tensor) else x for x in shown))


Universal = Callable[[Mechanism, torch.dtype, Worst], None]
Existential = Callable[[Mechanism, torch.dtype], str | None]


def check_promise(mechanism: Mechanism, promise: Promise, dtype: torch.dtype = torch.float64) -> Verdict:
    """Check by experiment whether a mechanism keeps a promise, stated in its spec or not."""
    if promise in EXISTENTIAL:
        example = EXISTENTIAL[promise](mechanism, dtype)
        return Verdict(promise, example is not None, example or "none of the inputs shows it")
    worst = Worst()
    UNIVERSAL[promise](mechanism, dtype, worst)
    if worst.size <= ROUNDING[dtype]:
        return Verdict(promise, True, "none of the inputs breaks it")
    return Verdict(promise, False if worst.size >= REFUTED else None, f"{worst.where} (off by {worst.size:.3g})")


def numbers(w: Tensor) -> str:
    return "[" + ", ".join(f"{value:.4g}" for value in w.flatten().tolist()) + "]"


def sums_to_one(mechanism: Mechanism, dtype: torch.dtype, worst: Worst) -> None:
    for d in draws(mechanism, dtype, keys=7, count=40):
        w = d.weights()
        total = w.sum().item()
        worst.update(abs(total - 1), "{} give {}, sum {:.6g}", d, w, total)


def nonnegative(mechanism: Mechanism, dtype: torch.dtype, worst: Worst) -> None:
    for d in draws(mechanism, dtype, keys=7, count=40):
        w = d.weights()
        worst.update(-w.min().clamp_max(0).item(), "{} give {}", d, w)


def bounded(mechanism: Mechanism, dtype: torch.dtype, worst: Worst) -> None:
    for scale in (1.0, 10.0, 80.0):
        for d in draws(mechanism, dtype, keys=7, count=24):
            d.maps = [scale * x for x in d.maps]
            largest = d.weights().abs().max().item()
            worst.update(max(largest - BOUND, 0.0), "{} give a weight of {:.4g}", d, largest)


def absolute(mechanism: Mechanism, dtype: torch.dtype, worst: Worst) -> None:
    few, others = torch.tensor([0, 2, 3, 5]), torch.tensor([1, 4, 6])
    for d in draws(mechanism, dtype, keys=7, count=40):
        together, alone = d.weights()[few], d.weights(few)
        message = "{}: keys 0, 2, 3 and 5 get {}, without the others {}"
        worst.update((together - alone).abs().max().item(), message, d, together, alone)
        original = str(d)
        d.maps = [x.scatter(0, others, 2.5) for x in d.maps]
        moved = d.weights()[few]
        message = "{}: keys 0, 2, 3 and 5 get {}, with the others at 2.5 {}"
        worst.update((together - moved).abs().max().item(), message, original, together, moved)


def refused_inert(mechanism: Mechanism, dtype: torch.dtype, worst: Worst) -> None:
    refused_any = False
    for d in draws(mechanism, dtype, keys=9, count=60):
        w = d.weights()
        rest = torch.nonzero(w)[:, 0]
        if 0 < len(rest) < len(w):
            refused_any = True
            without = d.weights(rest)
            off = (w[rest] - without).abs().max().item()
            worst.update(off, "{} give {}, without the refused keys {}", d, w, without)
    if not refused_any:
        worst.update(1.0, "no key was ever refused")


def outside_hull(mechanism: Mechanism, dtype: torch.dtype, worst: Worst, *, with_zero: bool) -> None:
    """Distance by which the output leaves the convex hull of the values, in random directions."""
    generator = torch.Generator().manual_seed(3)
    for number, case in enumerate(inputs(mechanism, dtype, count=40)):
        out, w = case.attend()
        directions = torch.randn(case.v.shape[-1], 24, dtype=dtype, generator=generator)
        along, values = out @ directions, case.v @ directions
        for t in range(out.shape[2]):
            low, high = values[:, :, : t + 1].amin(2), values[:, :, : t + 1].amax(2)
            if with_zero:
                low, high = low.clamp_max(0), high.clamp_min(0)
            off = max((along[:, :, t] - high).max().item(), (low - along[:, :, t]).max().item())
            seen = (w[0, 0, t, : t + 1], case.v[0, 0, : t + 1, 0], out[0, 0, t, 0])
            worst.update(
                off, "random case {}, query {}: first head, weights {}, first channel {}, output {}", number, t, *seen
            )


def shift_variation(mechanism: Mechanism, dtype: torch.dtype, worst: Worst) -> None:
    for d in draws(mechanism, dtype, keys=7, count=40):
        for which in range(mechanism.maps):
            before, after = d.weights(shift=(which, 0.0)), d.weights(shift=(which, 0.7))
            off = (after - before).abs().max().item()
            worst.update(off, "{}: {} becomes {} when 0.7 is added", d, before, after)


def scale_variation(mechanism: Mechanism, dtype: torch.dtype, worst: Worst) -> None:
    for number, case in enumerate(inputs(mechanism, dtype, count=20)):
        before, _ = case.attend()
        case.q, case.k = 3.0 * case.q, 0.6 * case.k
        after, _ = case.attend()
        message = "random case {}: the last output {} becomes {} with 3 q and 0.6 k"
        worst.update((after - before).abs().max().item(), message, number, before[0, 0, -1], after[0, 0, -1])


def future_leak(mechanism: Mechanism, dtype: torch.dtype, worst: Worst) -> None:
    """Outputs must be equal bit for bit: any difference is a leak. Only the last query sees the key that changes."""
    tested, newest = 0, -1 if mechanism.own_key else -2
    for number, case in enumerate(inputs(mechanism, dtype, count=12)):
        before, _ = case.attend()
        case.k, case.v = case.k.clone(), case.v.clone()
        case.k[:, :, newest], case.v[:, :, newest] = 2.0, -9.0
        after, _ = case.attend()
        if not torch.equal(before[:, :, :-1], after[:, :, :-1]):
            worst.update(1.0, "random case {}: the newest key of the last query changes an earlier output", number)
        tested += not torch.equal(before[:, :, -1], after[:, :, -1])
    if tested < 4:
        worst.update(float("nan"), "the change did not affect the last query either, so nothing was tested")


def accumulators(mechanism: Mechanism, dtype: torch.dtype, worst: Worst) -> None:
    """Violations of a single pass with two accumulators.

    For any later keys, and a known row length, the weights of the keys already read must stay in a space of two
    dimensions; otherwise their values cannot have been summed yet.
    """
    for d in draws(mechanism, dtype, keys=16, count=12, spread=0.7):
        read = []
        for other in draws(mechanism, dtype, keys=16, count=24, spread=1.2):
            other.maps = [torch.cat((x[:10], y[10:])) for x, y in zip(d.maps, other.maps, strict=True)]
            other.distance, other.scalars = d.distance, d.scalars
            read.append(other.weights()[:10])
        size = torch.linalg.svdvals(torch.stack(read))
        if size[0] > REFUTED:
            off = (size[2] / size[0]).item()
            worst.update(off, "{}: six later keys move the weights of the first ten in a third direction", d)


def exact_zero(mechanism: Mechanism, dtype: torch.dtype) -> str | None:
    def zeros(maps: list[Tensor]) -> Tensor:
        d.maps = maps
        return d.weights() == 0

    for d in draws(mechanism, dtype, keys=9, count=40):
        centre = d.maps
        if (zeros(centre) & _everywhere_near(zeros, centre)).any():
            d.maps = centre
            return f"{d} give {numbers(d.weights())}"
    return None


def blocks_skippable(mechanism: Mechanism, dtype: torch.dtype) -> str | None:
    for number, case in enumerate(inputs(mechanism, dtype, count=60)):
        before, w = case.attend()
        # Every head must skip the block: a norm over all heads would depend on the values that one of them read.
        skipping = (w[0, :, :, 2:5] == 0).all(0).all(-1)
        skipping[:5] = False  # the block is not yet visible
        if not skipping.any():
            continue
        case.v = case.v.clone()
        case.v[:, :, 2:5] = 1e6
        after, _ = case.attend()
        if torch.equal(before[:, :, skipping], after[:, :, skipping]):
            return f"random case {number}: keys 2 to 4 get zero from query {int(skipping.nonzero()[0])}"
    return None


def refuses(
    mechanism: Mechanism, dtype: torch.dtype, radii: tuple[float, ...], silent: Callable[[Tensor, float], bool]
) -> str | None:
    """Find scalars and scores that silence a row of any length, in a whole ball around both."""
    v = {n: 0.5 + torch.rand(n, 4, dtype=dtype, generator=torch.Generator().manual_seed(n)) for n in (3, 5)}

    def quiet(first: str, second: str, scalars: ScalarValues) -> bool:
        for n in v:
            rows = families(n, dtype)
            centre = [rows[first], rows[second]][: mechanism.maps]
            for radius in radii:
                for maps, side in zip(_ball(centre, radius), (0, 1, -1, 1, -1), strict=True):
                    near: ScalarValues = {
                        name: _nudged(mechanism.scalar(name), x, side * radius) for name, x in scalars.items()
                    }
                    out = output_of_scores(mechanism, maps, v[n], near)
                    if not silent(out, v[n].norm(dim=-1).max().item()):
                        return False
        return True

    names = list(families(3, dtype))
    for scalars in scalar_grid(mechanism):
        for first in names:
            for second in names if mechanism.maps == 2 else names[:1]:
                if quiet(first, second, scalars):
                    both = f"{first} scores" + (f", second map {second}" if mechanism.maps == 2 else "")
                    return both + "".join(f", {name} {float(value):g}" for name, value in scalars.items())
    return None


def _nudged(scalar: Scalar, value: Tensor | float, by: float) -> float:
    return min(max(float(value) + by, scalar.above + (0 if scalar.above_allowed else 1e-6)), scalar.up_to)


def refuses_exactly(mechanism: Mechanism, dtype: torch.dtype) -> str | None:
    return refuses(mechanism, dtype, (0.02, 0.002), lambda out, size: bool((out == 0).all()))


def refuses_in_limit(mechanism: Mechanism, dtype: torch.dtype) -> str | None:
    return refuses(mechanism, dtype, (LIMIT_RADIUS,), lambda out, size: out.norm().item() <= LIMIT * size)


def _ball(centre: list[Tensor], radius: float) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(5)
    moved = [
        [x + radius * (2 * torch.rand(x.shape, dtype=x.dtype, generator=generator) - 1) for x in centre]
        for _ in range(4)
    ]
    return [centre, *moved]


def _everywhere_near(holds: Callable[[list[Tensor]], Tensor], centre: list[Tensor]) -> Tensor:
    return torch.stack([holds(maps) for maps in _ball(centre, 1e-4)]).all(0)


def _outside_values(mechanism: Mechanism, dtype: torch.dtype, worst: Worst) -> None:
    outside_hull(mechanism, dtype, worst, with_zero=False)


def _outside_values_and_zero(mechanism: Mechanism, dtype: torch.dtype, worst: Worst) -> None:
    outside_hull(mechanism, dtype, worst, with_zero=True)


UNIVERSAL: dict[Promise, Universal] = {
    Promise.SUMS_TO_ONE: sums_to_one,
    Promise.NONNEGATIVE: nonnegative,
    Promise.BOUNDED: bounded,
    Promise.ABSOLUTE: absolute,
    Promise.REFUSED_INERT: refused_inert,
    Promise.CONVEX_HULL: _outside_values,
    Promise.HULL_WITH_ZERO: _outside_values_and_zero,
    Promise.SHIFT_INVARIANT: shift_variation,
    Promise.SCALE_INVARIANT: scale_variation,
    Promise.CAUSAL: future_leak,
    Promise.SINGLE_PASS: accumulators,
}
EXISTENTIAL: dict[Promise, Existential] = {
    Promise.EXACT_ZERO: exact_zero,
    Promise.BLOCKS_SKIPPABLE: blocks_skippable,
    Promise.REFUSES_EXACTLY: refuses_exactly,
    Promise.REFUSES_IN_LIMIT: refuses_in_limit,
}
assert set(UNIVERSAL) | set(EXISTENTIAL) == set(Promise), "a promise without a check"
