"""Means of row diagnostics by head and by how many keys the row sees, gathered a block at a time.

Every row enters the cheap diagnostics (rows.py). The expensive ones (geometry.py, sensitivity.py) look at `sample` rows
of each context bucket, evenly spaced. Buckets are powers of two: bucket k holds rows that see 2^k to 2^(k+1) - 1 keys.

Letters: H heads, T queries of a block, Q chosen queries, S keys.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from keysift.lens import geometry, rows, sensitivity
from keysift.lens.leave_out import moved
from keysift.lens.percentile import Calibration, Examples, brightness
from keysift.lens.reading import Block, Reading
from keysift.lens.rows import Numbers
from keysift.lens.threshold import threshold
from keysift.mechanisms.softmax import SOFTMAX
from keysift.mechanisms.spec import Promise

Array = npt.NDArray[np.float64]
FIT_FROM = 8  # rows that see fewer keys say little about how a head behaves as the context grows
MASS = 0.9


@dataclass
class HeadSums:
    """Sums and counts of one layer, H x buckets, and the moments that least-squares lines need."""

    heads: int
    buckets: int
    sums: dict[str, Array] = field(default_factory=dict)
    counts: dict[str, Array] = field(default_factory=dict)
    moments: dict[str, Array] = field(default_factory=dict)  # H x (n, x, y, xx, xy)

    def add(self, numbers: Numbers, bucket_HT: Tensor) -> None:
        flat = bucket_HT + torch.arange(self.heads)[:, None] * self.buckets
        for name, value_HT in numbers.items():
            defined = value_HT.isfinite()
            value = value_HT.double().masked_fill(~defined, 0)
            for store, what in ((self.sums, value), (self.counts, defined.double())):
                total = torch.zeros(self.heads * self.buckets, dtype=torch.float64)
                total.index_add_(0, flat.flatten(), what.flatten())
                table = total.view(self.heads, self.buckets).numpy()
                store[name] = store[name] + table if name in store else table

    def fit(self, name: str, x_HT: Tensor, y_HT: Tensor, use_HT: Tensor) -> None:
        use = (use_HT & y_HT.isfinite()).double()
        x, y = x_HT.double() * use, y_HT.double().nan_to_num(posinf=0, neginf=0) * use
        moments = torch.stack([use.sum(-1), x.sum(-1), y.sum(-1), (x * x).sum(-1), (x * y).sum(-1)], dim=1).numpy()
        self.moments[name] = self.moments[name] + moments if name in self.moments else moments

    def mean(self, name: str) -> Array:
        """H, over every row."""
        with np.errstate(invalid="ignore"):
            found: Array = self.sums[name].sum(1) / self.counts[name].sum(1)
        return found

    def by_length(self, name: str) -> Array:
        with np.errstate(invalid="ignore"):
            found: Array = self.sums[name] / self.counts[name]
        return found

    def slope(self, name: str) -> Array:
        n, x, y, xx, xy = self.moments[name].T
        with np.errstate(invalid="ignore", divide="ignore"):
            spread = n * xx - x * x
            found: Array = np.where(spread > 1e-9 * np.maximum(n * xx, 1), (n * xy - x * y) / spread, np.nan)
        return found

    def line(self, name: str) -> tuple[Array, Array]:
        """Slope and intercept of the least-squares line."""
        slope = self.slope(name)
        n, x, y, _, _ = self.moments[name].T
        with np.errstate(invalid="ignore", divide="ignore"):
            return slope, (y - slope * x) / n


def bucket_of(n: Tensor) -> Tensor:
    """floor(log2 n), from integers."""
    return (n.clamp_min(1)[..., None] >= 2 ** torch.arange(1, 32)).sum(-1)


class Collector:
    """Visits readings, one layer after the other, and keeps their sums."""

    def __init__(
        self, longest: int, *, sample: int = 16, seed: int = 0, calibration: Calibration | None = None
    ) -> None:
        self.buckets = int(math.log2(longest)) + 1
        self.sample = sample
        self.seed = seed
        self.calibration = calibration
        self.examples = Examples()
        self.before = 0  # texts of earlier batches
        self.layers: dict[int, HeadSums] = {}

    def visit(self, reading: Reading) -> None:
        sums = self.layers.setdefault(reading.layer, HeadSums(reading.heads, self.buckets))
        limits_H = threshold(reading)
        for block in reading.blocks():
            numbers = rows.spread_out(block) | rows.where(block) | rows.retained(block)
            if Promise.SUMS_TO_ONE in reading.mechanism.holds:
                numbers |= rows.focus(block)
            if limits_H is not None:
                numbers |= rows.accepted(block, limits_H)
            elif Promise.EXACT_ZERO in reading.mechanism.holds:
                numbers |= _refused(block)
            if self.calibration is not None:
                bright, key_HT = brightness(block, self.calibration)
                self.examples.add(block, self.before + block.text, bright, key_HT)
                numbers |= bright
            sums.add(numbers, bucket_of(block.n_HT))
            self._fits(sums, numbers, block.n_HT)
            chosen = self._chosen(block)
            if len(chosen):
                some = block.pick(chosen)
                sums.add(self._dear(some, reading), bucket_of(some.n_HT))

    def _fits(self, sums: HeadSums, numbers: Numbers, n_HT: Tensor) -> None:
        log_n, enough = n_HT.double().clamp_min(1).log(), n_HT >= FIT_FROM
        for suffix in ("", "_without_first"):
            sums.fit(f"fading{suffix}", log_n, numbers[f"largest_weight{suffix}"].double().log(), enough)
        if "spread" in numbers:
            sums.fit("spread", log_n, numbers["spread"].double(), enough)

    def _chosen(self, block: Block) -> Tensor:
        """At most `sample` rows of each bucket, decided by position alone, so that blocks do not matter."""
        if self.sample == 0:
            return block.at_T[:0]
        n_T = block.at_T + 1
        low_T = 2 ** bucket_of(n_T)
        every_T = torch.div(low_T + self.sample - 1, self.sample, rounding_mode="floor")
        return torch.nonzero((n_T - low_T) % every_T == 0).flatten()

    def _dear(self, block: Block, reading: Reading) -> Numbers:
        alpha, seen, scores = block.weights_HTS, block.seen_HTS, block.scores_HTS
        heads, _, keys = alpha.shape
        # Each row draws from its own seed, and for its own keys: blocks of another size give the same numbers.
        random = torch.zeros(alpha.shape)
        for row, at in enumerate(block.at_T.tolist()):
            random[:, row, : at + 1] = torch.rand(heads, at + 1, generator=self._generator(block, at))
        every = block.every_value_HSV
        shuffle = torch.randperm(every.shape[1], generator=self._generator(block, 0))[:keys]
        found = geometry.geometry(alpha, seen, block.values_HSV, random, every[:, shuffle])
        found |= _keys_for_mass(block) | moved(block)
        if reading.mechanism.name == SOFTMAX.name:  # the formulas of sensitivity.py are softmax's own
            normal = torch.special.ndtri(random.clamp(1e-6, 1 - 1e-6))
            found |= sensitivity.sensitivity(scores, seen, normal, reading.call.scale)
        return found

    def _generator(self, block: Block, at: int) -> torch.Generator:
        return torch.Generator().manual_seed(hash((self.seed, block.layer, self.before + block.text, at)) % 2**63)


def _refused(block: Block) -> Numbers:
    passed = (block.weights_HTS != 0).sum(-1)
    return {
        "accepted": passed.double(),
        "accepted_share": passed / block.n_HT,
        "refuses_all": (passed == 0).double(),
    }


def _keys_for_mass(block: Block) -> Numbers:
    """The share of visible keys that holds 90% of the mass, and what Gaussian scores of this deviation would need."""
    n, size, seen = block.n_HT, block.size_HTS, block.seen_HTS
    mass = size.sum(-1)
    held = size.sort(dim=-1, descending=True).values.cumsum(-1) / mass[..., None]
    need = (held < MASS).sum(-1) + 1
    mean = block.scores_HTS.masked_fill(~seen, 0).sum(-1) / n
    variance = (block.scores_HTS - mean[..., None]).square().masked_fill(~seen, 0).sum(-1) / n
    predicted = torch.special.ndtr(torch.special.ndtri(torch.tensor(MASS)) - variance.sqrt())
    several = (n > 1) & (mass > 0)
    return {
        "keys_for_mass": torch.where(several, need / n, math.nan),
        "keys_for_mass_gaussian": torch.where(several, predicted, math.nan),
        "score_deviation": torch.where(several, variance.sqrt(), math.nan),
    }
