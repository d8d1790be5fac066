"""Timing that survives a busy machine: contestants take turns in one process, and ratios are taken turn by turn."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from keysift.evaluate.performance import Spread

LONG_ENOUGH = 0.05  # seconds; a quicker contestant runs several times in its turn, which then counts as their median
MOST_REPEATS = 20


def interleave(contestants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every contestant in every round, after one turn each that is not counted."""
    for run in contestants.values():
        run()
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
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


def exponent(lengths: Sequence[int], times: Sequence[float]) -> float:
    """The slope of log time over log length, by least squares: 1 is linear, 2 quadratic."""
    return statistics.linear_regression([math.log(n) for n in lengths], [math.log(t) for t in times]).slope


def sgemm_gflops(side: int = 2048, rounds: int = 8) -> float:
    """Billions of fp32 operations a second, the best of a few square matrix products."""
    a, b = torch.randn(side, side), torch.randn(side, side)
    out = torch.empty(side, side)
    times = interleave({"sgemm": lambda: torch.mm(a, b, out=out)}, rounds)["sgemm"]
    return 2 * side**3 / min(times) / 1e9


def read_gb_per_s(megabytes: int = 512, rounds: int = 8) -> float:
    """The best of a few sums over a tensor that no cache holds."""
    x = torch.ones(megabytes * 2**18)
    times = interleave({"read": x.sum}, rounds)["read"]
    return x.numel() * 4 / min(times) / 1e9
