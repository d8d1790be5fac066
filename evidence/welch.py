"""The difference of two means, with its 95% interval and the verdict of Welch's t-test."""

import math
from dataclasses import dataclass
from typing import Literal

from keysift.core.statistics import Sample

Word = Literal["reproduced at this scale", "not reproduced", "undecided"]
MIN_SEEDS = 3  # with fewer seeds on either side nothing is decided
# Student's t at 5%, two-sided, for 1, 2, 3, ... degrees of freedom. The last value, used beyond, is conservative.
_STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True)
class Difference:
    """Mean of `high` minus mean of `low`. A claim says that it is positive."""

    high: Sample
    low: Sample

    @property
    def value(self) -> float:
        return self.high.mean - self.low.mean

    @property
    def seeds(self) -> int:
        """Number of seeds on the side that has fewer."""
        return min(len(self.high), len(self.low))

    @property
    def standard_error(self) -> float | None:
        if self.high.std is None or self.low.std is None:
            return None
        return math.sqrt(self.high.std**2 / len(self.high) + self.low.std**2 / len(self.low))

    @property
    def _degrees_of_freedom(self) -> int:
        """Welch-Satterthwaite, rounded down."""
        parts = [((side.std or 0.0) ** 2 / len(side), len(side) - 1) for side in (self.high, self.low)]
        spread = sum(part**2 / freedom for part, freedom in parts)
        return int(sum(part for part, _ in parts) ** 2 / spread) if spread else sum(freedom for _, freedom in parts)

    @property
    def half_width(self) -> float | None:
        """Half the width of the 95% interval; None with fewer than MIN_SEEDS seeds on a side."""
        if self.standard_error is None or self.seeds < MIN_SEEDS:
            return None
        return _STUDENT_T[min(max(self._degrees_of_freedom, 1), len(_STUDENT_T)) - 1] * self.standard_error

    @property
    def word(self) -> Word:
        """Decided if the 95% interval excludes zero."""
        if self.half_width is None or abs(self.value) <= self.half_width:
            return "undecided"
        return "reproduced at this scale" if self.value > 0 else "not reproduced"

    @property
    def interval(self) -> str:
        """The difference and its 95% interval, as text."""
        if self.half_width is None:
            return f"{self.value:+.3g} (no interval)"
        return f"{self.value:+.3g} ({self.value - self.half_width:+.3g} to {self.value + self.half_width:+.3g})"

    def __str__(self) -> str:
        if self.half_width is None:
            return f"{self.value:+.4g}, with only {self.seeds} seed{'s' * (self.seeds > 1)} on one side"
        return f"{self.value:+.4g} with standard error {self.standard_error:.2g}"
