"""Timing that survives a busy machine: contestants take turns in one process, and ratios are taken turn by turn."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from keysift.bench.record import Row, Spread, Step

LONG_ENOUGH = 0.05  # seconds; a quicker contestant runs several times in its turn, which then counts as their median
MOST_REPEATS = 20
Say = Callable[[str], None]
Turns = dict[str, Callable[[], object]]


def interleave(
    contestants: Mapping[str, Callable[[], object]], rounds: int, *, limit: float = math.inf
) -> dict[str, list[float]]:
    """Seconds of every contestant in every round, after one turn each that is not counted.

    No round begins after `limit` seconds. Where the first turns alone take half of it, those of the slow contestants
    count, and the quick ones have one more.
    """
    began = time.perf_counter()
    first = {name: seconds(run) for name, run in contestants.items()}
    if time.perf_counter() - began > limit / 2:
        return {name: [took if took > LONG_ENOUGH else _turn(contestants[name])] for name, took in first.items()}
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds):
        if number and time.perf_counter() - began > limit:
            break
        for name, run in contestants.items():
            taken[name].append(_turn(run))
    return taken


def _turn(run: Callable[[], object]) -> float:
    first = seconds(run)
    more = min(MOST_REPEATS, int(LONG_ENOUGH / max(first, 1e-9)))
    return statistics.median([first, *(seconds(run) for _ in range(more))])


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def spread(samples: Sequence[float]) -> Spread:
    if len(samples) == 1:
        return Spread(median=samples[0], low=samples[0], high=samples[0])
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Spread(median=middle, low=low, high=high)


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Round by round, so that a slow minute of the machine falls on both sides."""
    return [a / b for a, b in zip(above, below, strict=True)]


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    return statistics.median(ratios(above, below))


def exponent(lengths: Sequence[int], times: Sequence[float]) -> float:
    """The slope of log time over log length, by least squares: 1 is linear, 2 quadratic."""
    return statistics.linear_regression([math.log(n) for n in lengths], [math.log(t) for t in times]).slope


def row(
    what: str,
    step: Step,
    tokens: int,
    ours: Sequence[float],
    *,
    setting: str = "",
    against: str = "",
    theirs: Sequence[float] = (),
) -> Row:
    """A row of a record from the seconds of each round."""
    return Row(
        what=what,
        setting=setting,
        tokens=tokens,
        step=step,
        seconds=spread(ours),
        against=against,
        their_seconds=spread(theirs) if theirs else None,
        speedup=spread(ratios(theirs, ours)) if theirs else None,
    )
