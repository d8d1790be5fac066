"""Timing on a busy machine: cases take turns in one process, and ratios are taken round by round."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from keysift.records.bench import Quartiles, Row, Step

LONG_ENOUGH = 0.05  # seconds; a faster case runs several times per turn, and the turn counts as their median
MAX_REPEATS = 20
Turns = dict[str, Callable[[], object]]


def interleave(
    cases: Mapping[str, Callable[[], object]], rounds: int, *, limit: float = math.inf
) -> dict[str, list[float]]:
    """Return the seconds of every case in every round, after an uncounted warmup turn of each.

    No round begins after `limit` seconds. If the warmup takes more than half of it, the warmup turns of slow cases
    count as their only round, and fast cases get one more turn.
    """
    began = time.perf_counter()
    first = {name: seconds(run) for name, run in cases.items()}
    if time.perf_counter() - began > limit / 2:
        return {name: [took if took > LONG_ENOUGH else _turn(cases[name])] for name, took in first.items()}
    times: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds):
        if number and time.perf_counter() - began > limit:
            break
        for name, run in cases.items():
            times[name].append(_turn(run))
    return times


def _turn(run: Callable[[], object]) -> float:
    first = seconds(run)
    more = min(MAX_REPEATS, int(LONG_ENOUGH / max(first, 1e-9)))
    return statistics.median([first, *(seconds(run) for _ in range(more))])


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def quartiles(samples: Sequence[float]) -> Quartiles:
    """Median and quartiles."""
    if len(samples) == 1:
        return Quartiles(median=samples[0], low=samples[0], high=samples[0])
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Quartiles(median=middle, low=low, high=high)


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Ratios round by round, so that a slow minute of the machine affects both sides."""
    return [a / b for a, b in zip(above, below, strict=True)]


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    return statistics.median(ratios(above, below))


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
    """A row of a record, from the seconds of each round of a case (`ours`) and of its rival (`theirs`)."""
    return Row(
        what=what,
        setting=setting,
        tokens=tokens,
        step=step,
        seconds=quartiles(ours),
        against=against,
        their_seconds=quartiles(theirs) if theirs else None,
        speedup=quartiles(ratios(theirs, ours)) if theirs else None,
    )
