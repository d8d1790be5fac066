"""Paired comparison of two models over seeds: effect, 95% interval, p-value, equivalence, and the seeds needed.

Models of a study read the same data in the same order if their seed is the same, so a seed gives one difference.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scipy import stats

Word = Literal[
    "supported",
    "contradicted",
    "equivalent within the margin",
    "underpowered",
    "task not learned by either",
    "unfinished",
    "no records",
]
MIN_SEEDS = 3  # with fewer pairs there is no interval
ALPHA = 0.05
POWER = 0.8
ROUNDING = 1e-12  # relative to the mean
MOST_SEEDS = 200  # `seeds_needed` reports nothing beyond


@dataclass(frozen=True)
class Comparison:
    """One difference per seed, positive where the claim is right.

    margin   differences up to this size count as equal; 0 makes no statement about equality
    """

    differences: tuple[float, ...]
    margin: float = 0.0

    @property
    def n(self) -> int:
        return len(self.differences)

    @property
    def mean(self) -> float:
        return math.fsum(self.differences) / self.n

    @property
    def _deviation(self) -> float | None:
        """Standard deviation over the seeds, 0 if it is rounding; None with fewer than MIN_SEEDS pairs."""
        if self.n < MIN_SEEDS:
            return None
        deviation = statistics.stdev(self.differences)
        return 0.0 if deviation < ROUNDING * abs(self.mean) else deviation

    @property
    def p(self) -> float:
        """Two-sided p-value of the paired t-test; 1 with fewer than MIN_SEEDS pairs."""
        if self._deviation is None:
            return 1.0
        if self._deviation == 0:
            return 1.0 if self.mean == 0 else 0.0
        return float(stats.ttest_1samp(self.differences, 0).pvalue)

    def bounds(self, level: float = 1 - ALPHA) -> tuple[float, float] | None:
        """Confidence interval of the mean difference; None with fewer than MIN_SEEDS pairs."""
        if self._deviation is None:
            return None
        if self._deviation == 0:
            return self.mean, self.mean
        low, high = stats.ttest_1samp(self.differences, 0).confidence_interval(level)
        return float(low), float(high)

    @property
    def equivalent(self) -> bool:
        """Two one-sided tests: the 90% interval lies within the margin."""
        bounds = self.bounds(1 - 2 * ALPHA)
        return self.margin > 0 and bounds is not None and -self.margin < bounds[0] and bounds[1] < self.margin

    @property
    def seeds_needed(self) -> int | None:
        """Seeds for a power of 80% at an effect as large as the margin, or as the observed mean without a margin.

        None if the spread is unknown, or if more than MOST_SEEDS are needed.
        """
        deviation, effect = self._deviation, self.margin or abs(self.mean)
        if deviation is None or effect == 0:
            return None
        return next((n for n in range(MIN_SEEDS, MOST_SEEDS + 1) if _power(effect, deviation, n) >= POWER), None)

    def word(self, p: float) -> Word:
        """The verdict, given the p-value after correction for the number of claims."""
        if p < ALPHA:
            return "supported" if self.mean > 0 else "contradicted"
        return "equivalent within the margin" if self.equivalent else "underpowered"

    @property
    def interval(self) -> str:
        """The mean difference and its 95% interval, as text."""
        bounds = self.bounds()
        return f"{self.mean:+.3g}" + (
            " (no interval)" if bounds is None else f" ({bounds[0]:+.3g} to {bounds[1]:+.3g})"
        )


def _power(effect: float, deviation: float, n: int) -> float:
    """Power of the two-sided paired t-test with n pairs."""
    if deviation == 0:
        return 1.0
    limit, shift = stats.t.ppf(1 - ALPHA / 2, n - 1), effect / deviation * math.sqrt(n)
    return float(stats.nct.sf(limit, n - 1, shift) + stats.nct.cdf(-limit, n - 1, shift))


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: the k-th smallest of m is multiplied by m - k + 1, and none is below a smaller one."""
    adjusted, largest = [0.0] * len(ps), 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[index]))
        adjusted[index] = largest
    return adjusted
