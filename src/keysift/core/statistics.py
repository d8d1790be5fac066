"""Statistics that records, tables and pages share: mean and standard deviation over seeds, exponent of a power law."""

import math
import statistics
from collections.abc import Iterable

from keysift.core.config import config


@config
class Sample:
    """Values of one quantity, usually one per seed. There is at least one."""

    values: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return statistics.mean(self.values)

    @property
    def std(self) -> float | None:
        """Sample standard deviation; None for a single value."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean; None for a single value."""
        return None if self.std is None else self.std / math.sqrt(len(self.values))


def sample(values: Iterable[float | None]) -> Sample | None:
    """The values that are not None, or None if all are."""
    known = tuple(value for value in values if value is not None)
    return Sample(values=known) if known else None


def power_law_exponent(points: Iterable[tuple[float, float]]) -> float:
    """Least-squares slope of log y over log x. Points with y <= 0 are ignored; NaN for fewer than two distinct x."""
    logs = [(math.log(x), math.log(y)) for x, y in points if y > 0]
    if len({x for x, _ in logs}) < 2:
        return math.nan
    return statistics.linear_regression([x for x, _ in logs], [y for _, y in logs]).slope
