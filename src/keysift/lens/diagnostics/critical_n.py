"""The critical N: the number of top keys from which their distance is statistically equal to its reference.

Algorithm 3 of arXiv:2508.17821: for increasing N, a two-sample Kolmogorov-Smirnov test over heads compares the mean
distance of each head with its mean reference. The critical N is the first at which the test does not reject. There are
two references (geometry.py), each with its own critical N. Computed from a record, without torch.
"""

import math
import re
from collections.abc import Sequence

from keysift.records.lens import Record

OUTPUT, SUBSET = "distance_expected_output", "distance_expected_subset"
LEVEL = 0.01


def critical(record: Record, bucket: int, reference: str, level: float = LEVEL) -> int | None:
    """The critical N in one context bucket; None if the test rejects at every measured N, or none was measured."""
    for count in counts(record):
        own, expected = (_values(record, f"{name}_{count}", bucket) for name in ("distance", reference))
        if own and expected and not differs(own, expected, level):
            return count
    return None


def _values(record: Record, name: str, bucket: int) -> list[float]:
    """The value of each head that has one."""
    values = (head.by_length[name][bucket] for head in record.heads if name in head.by_length)
    return [value for value in values if value is not None]


def longest_measured(record: Record) -> int | None:
    """The longest context bucket with distances; a bucket that the texts fill is preferred."""
    buckets = [
        k for k in range(len(record.lengths)) if any(_values(record, f"distance_{n}", k) for n in counts(record))
    ]
    longest = max(text.tokens for text in record.texts)
    return next((k for k in reversed(buckets) if record.lengths[k][1] <= longest), buckets[-1] if buckets else None)


def counts(record: Record) -> list[int]:
    """Every N with measured distances."""
    names = {name for head in record.heads for name in head.by_length}
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(r"distance_(\d+)", name)))


def differs(first: Sequence[float], second: Sequence[float], level: float) -> bool:
    """Whether the two-sample Kolmogorov-Smirnov test rejects at this level (asymptotic critical value)."""
    n, m = len(first), len(second)
    limit = math.sqrt(-math.log(level / 2) / 2) * math.sqrt((n + m) / (n * m))
    return largest_gap(first, second) > limit


def largest_gap(first: Sequence[float], second: Sequence[float]) -> float:
    """Largest difference between the two empirical distribution functions."""
    return max(
        abs(sum(x <= at for x in first) / len(first) - sum(x <= at for x in second) / len(second))
        for at in {*first, *second}
    )
