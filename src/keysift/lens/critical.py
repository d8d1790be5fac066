"""The critical N: how many heaviest keys it takes until their distance is no longer told from its reference.

After Algorithm 3 of arXiv:2508.17821: for N ascending, the mean distance of every head is compared with its mean
reference by a two-sample Kolmogorov-Smirnov test over heads; the first N at which it does not reject is critical. The
references differ (geometry.py), so a critical N is always that of one of them. No torch: made from a record.
"""

import math
import re
from collections.abc import Sequence

from keysift.lens.record import Record

OUTPUT, SUBSET = "distance_expected_output", "distance_expected_subset"
LEVEL = 0.01


def critical(record: Record, bucket: int, reference: str, level: float = LEVEL) -> int | None:
    """Within one context bucket; None if every N that was measured there is told apart, or none was measured."""
    for count in counts(record):
        own, wanted = (_known(record, f"{name}_{count}", bucket) for name in ("distance", reference))
        if own and wanted and not told_apart(own, wanted, level):
            return count
    return None


def _known(record: Record, name: str, bucket: int) -> list[float]:
    """One number for each head that has it."""
    found = (head.by_length[name][bucket] for head in record.heads if name in head.by_length)
    return [value for value in found if value is not None]


def longest_measured(record: Record) -> int | None:
    """The last context bucket with distances: one that the texts fill, if there is any."""
    there = [k for k in range(len(record.lengths)) if any(_known(record, f"distance_{n}", k) for n in counts(record))]
    longest = max(text.tokens for text in record.texts)
    return next((k for k in reversed(there) if record.lengths[k][1] <= longest), there[-1] if there else None)


def counts(record: Record) -> list[int]:
    """Every N at which distances were measured."""
    names = {name for head in record.heads for name in head.by_length}
    return sorted(int(found[1]) for name in names if (found := re.fullmatch(r"distance_(\d+)", name)))


def told_apart(first: Sequence[float], second: Sequence[float], level: float) -> bool:
    """Whether the two-sample Kolmogorov-Smirnov test rejects at this level (the limit for large samples)."""
    n, m = len(first), len(second)
    limit = math.sqrt(-math.log(level / 2) / 2) * math.sqrt((n + m) / (n * m))
    return largest_gap(first, second) > limit


def largest_gap(first: Sequence[float], second: Sequence[float]) -> float:
    """Between the two empirical distribution functions."""
    return max(
        abs(sum(x <= at for x in first) / len(first) - sum(x <= at for x in second) / len(second))
        for at in {*first, *second}
    )
