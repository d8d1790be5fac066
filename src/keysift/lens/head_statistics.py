"""Means and fits of row diagnostics, per head and number of visible keys; and the heads of a record made from them.

Context buckets are powers of two: bucket k holds the rows with 2^k to 2^(k+1) - 1 visible keys.

Letters: H heads, T queries of a block.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from keysift.lens.diagnostics.rows import Numbers
from keysift.records.head_kinds import head_kinds
from keysift.records.lens import Head

Array = npt.NDArray[np.float64]
NO_LIMIT = 1e12  # the largest focus limit that is written


def bucket_of(n: Tensor) -> Tensor:
    """floor(log2 n), computed with integers."""
    return (n.clamp_min(1)[..., None] >= 2 ** torch.arange(1, 32)).sum(-1)


@dataclass
class LayerStatistics:
    """Sums and counts of one layer, H x buckets, and the moments of its least-squares fits."""

    heads: int
    buckets: int
    sums: dict[str, Array] = field(default_factory=dict)
    counts: dict[str, Array] = field(default_factory=dict)
    moments: dict[str, Array] = field(default_factory=dict)  # H x (n, x, y, xx, xy)
    whole: dict[str, Array] = field(default_factory=dict)  # H; numbers that are not means over rows

    def add(self, numbers: Numbers, bucket_HT: Tensor) -> None:
        """Add H x T numbers by name; NaN and infinity are ignored."""
        flat = bucket_HT + torch.arange(self.heads)[:, None] * self.buckets
        for name, value_HT in numbers.items():
            defined = value_HT.isfinite()
            value = value_HT.double().masked_fill(~defined, 0)
            for totals, addend in ((self.sums, value), (self.counts, defined.double())):
                total = torch.zeros(self.heads * self.buckets, dtype=torch.float64)
                total.index_add_(0, flat.flatten(), addend.flatten())
                table = total.view(self.heads, self.buckets).numpy()
                totals[name] = totals[name] + table if name in totals else table

    def add_points(self, name: str, x_HT: Tensor, y_HT: Tensor, use_HT: Tensor) -> None:
        """Add points to the least-squares line `name` of each head."""
        use = (use_HT & y_HT.isfinite()).double()
        x, y = x_HT.double() * use, y_HT.double().nan_to_num(posinf=0, neginf=0) * use
        moments = torch.stack([use.sum(-1), x.sum(-1), y.sum(-1), (x * x).sum(-1), (x * y).sum(-1)], dim=1).numpy()
        self.moments[name] = self.moments[name] + moments if name in self.moments else moments

    def mean(self, name: str) -> Array:
        """Mean over all rows, H."""
        with np.errstate(invalid="ignore"):
            means: Array = self.sums[name].sum(1) / self.counts[name].sum(1)
        return means

    def by_length(self, name: str) -> Array:
        """Mean over the rows of each bucket, H x buckets."""
        with np.errstate(invalid="ignore"):
            means: Array = self.sums[name] / self.counts[name]
        return means

    def slope(self, name: str) -> Array:
        """Slope of the least-squares line; NaN where x does not vary."""
        n, x, y, xx, xy = self.moments[name].T
        with np.errstate(invalid="ignore", divide="ignore"):
            variance = n * xx - x * x
            slopes: Array = np.where(variance > 1e-9 * np.maximum(n * xx, 1), (n * xy - x * y) / variance, np.nan)
        return slopes

    def line(self, name: str) -> tuple[Array, Array]:
        """Slope and intercept of the least-squares line."""
        slope = self.slope(name)
        n, x, y, _, _ = self.moments[name].T
        with np.errstate(invalid="ignore", divide="ignore"):
            return slope, (y - slope * x) / n


def heads_of(layers: Mapping[int, LayerStatistics]) -> tuple[Head, ...]:
    """The heads of a record, in order."""
    heads = []
    for layer, statistics in sorted(layers.items()):
        values = {name: statistics.mean(name) for name in statistics.sums} | _derived(statistics) | statistics.whole
        by_length = {name: statistics.by_length(name) for name in statistics.sums}
        if "spread" in by_length:
            by_length["reach"] = _focus_limit(by_length["spread"])
        for head in range(statistics.heads):
            own = {name: _number(column[head]) for name, column in values.items()}
            heads.append(
                Head(
                    layer=layer,
                    head=head,
                    kinds=head_kinds(own),
                    values=own,
                    by_length={name: tuple(map(_number, table[head])) for name, table in by_length.items()},
                )
            )
    return tuple(heads)


def _derived(statistics: LayerStatistics) -> dict[str, Array]:
    """Diagnostics that are fitted or computed from means instead of averaged over rows."""
    values = {
        "fading_exponent": -statistics.slope("fading"),
        "fading_exponent_without_first": -statistics.slope("fading_without_first"),
    }
    if "spread" in statistics.sums:
        slope, level = statistics.line("spread")
        values["spread_slope"] = slope
        values["reach"] = _focus_limit(_last_defined(statistics.by_length("spread")))
        # Where the line meets log n, the range that half of the mass requires. A line of slope 1 or more never does.
        with np.errstate(divide="ignore", invalid="ignore"):
            log_n = level / (1 - slope)
            log_n = np.where((slope < 1) & (log_n < np.log(NO_LIMIT)), log_n, np.nan)
        values["focus_until"] = np.exp(np.maximum(log_n, 0))
    return values


def _focus_limit(spread: Array) -> Array:
    """The most visible keys with which this range of scores can give one key half of the mass."""
    limit: Array = np.minimum(1 + np.exp(np.minimum(spread, 50)), NO_LIMIT)
    return limit


def _last_defined(table: Array) -> Array:
    """The last column of each row that is not NaN."""
    last = np.full(len(table), np.nan)
    for column in table.T:
        last = np.where(np.isfinite(column), column, last)
    return last


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
