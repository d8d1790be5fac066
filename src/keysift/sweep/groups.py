"""Records of a study that differ by their seed alone, and the difference of two such groups. Free of torch."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from keysift.sweep.records import Record

Word = Literal["reproduced at this scale", "not reproduced", "undecided"]
SEEDS = 3  # fewer decide nothing
# Student's t at 5%, two-sided, for 1, 2, 3, ... degrees of freedom; the last serves all beyond.
_STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True)
class Sample:
    """One number for each seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.mean(self.values)

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Group:
    """One contestant at one rate."""

    label: str
    rate: float
    records: tuple[Record, ...]

    @property
    def parameters(self) -> int:
        return self.records[0].parameters

    @property
    def losses(self) -> Sample | None:
        found = tuple(one.val_loss for one in self.records if one.counts and one.val_loss is not None)
        return Sample(found) if found else None

    @property
    def accuracies(self) -> Sample | None:
        found = tuple(one.accuracy for one in self.records if one.counts and one.accuracy is not None)
        return Sample(found) if found else None

    @property
    def diverged(self) -> int:
        return sum(not one.counts for one in self.records)

    def retrieved(self, ratio: int, setting: str) -> Sample | None:
        """Accuracy at a multiple of the training length, over all depths."""
        found = []
        for one in self.records:
            cells = [c for c in one.measures.get("lengths", []) if c["ratio"] == ratio and c["setting"] == setting]
            if cells:
                found.append(sum(cell["right"] for cell in cells) / sum(cell["asked"] for cell in cells))
        return Sample(tuple(found)) if found else None

    def settings(self, measure: str) -> list[str]:
        """The ways the model was run for a measure."""
        return list(dict.fromkeys(point["setting"] for one in self.records for point in one.measures.get(measure, [])))

    def at_position_scaled(self, ratio: float) -> Sample | None:
        """At the RoPE factor that is best there."""
        scaled = [name for name in self.settings("positions") if name.startswith("RoPE")]
        found = [sample for name in scaled if (sample := self.at_position(ratio, name)) is not None]
        return min(found, key=lambda sample: sample.mean, default=None)

    def at_position(self, ratio: float, setting: str) -> Sample | None:
        """Loss with so many training lengths before the predicted token."""
        found = []
        for one in self.records:
            at = ratio * one.settings["context"]
            points = [p for p in one.measures.get("positions", []) if p["context"] == at and p["setting"] == setting]
            found += [point["nats"] for point in points]
        return Sample(tuple(found)) if found else None


def groups(records: Iterable[Record]) -> list[Group]:
    together: dict[tuple[str, float, int], list[Record]] = {}
    for one in records:
        together.setdefault((label(one.settings), float(one.settings["lr"]), one.parameters), []).append(one)
    return [Group(name, rate, tuple(members)) for (name, rate, _), members in together.items()]


def at_best(found: Sequence[Group]) -> list[Group]:
    """Of each contestant the rate with the most seeds, and among those the lowest mean loss."""
    chosen: dict[tuple[str, int], Group] = {}
    for one in found:
        known = chosen.get((one.label, one.parameters))
        if one.losses is not None and (known is None or _rank(one) < _rank(known)):
            chosen[one.label, one.parameters] = one
    return list(chosen.values())


def _rank(one: Group) -> tuple[int, float]:
    losses = one.losses
    return (0, math.inf) if losses is None else (-len(losses.values), losses.mean)


def label(settings: dict[str, Any]) -> str:
    """A contestant in a few words."""
    if settings["arch"] == "transformer":
        parts = ["Transformer", *([] if settings["mechanism"] == "softmax" else [str(settings["mechanism"])])]
        return ", ".join([*parts, *(["QK norm"] if settings["qk_norm"] else [])])
    start = tuple(settings["acceptance_start"])
    parts = ["Multiscreen"]
    parts += [] if start == (0.5,) else ["open start"] if len(start) == 1 else ["spread start"]
    parts += [] if settings["position"] == "mipe" else ["RoPE" if settings["position"] == "rope" else "no position"]
    parts += [] if settings["norm"] == "tanh" else ["no TanhNorm"]
    parts += [] if settings["gate"] else ["no gate"]
    parts += [] if settings["acceptance"] == "learned" else [f"r = {settings['acceptance']:g}"]
    parts += [f"decay {settings['weight_decay']:g}"] if settings["weight_decay"] else []
    return ", ".join(parts)


@dataclass(frozen=True)
class Difference:
    """Mean of `high` minus mean of `low`, with its standard error."""

    high: Sample
    low: Sample

    @property
    def value(self) -> float:
        return self.high.mean - self.low.mean

    @property
    def error(self) -> float | None:
        if self.high.spread is None or self.low.spread is None:
            return None
        return math.sqrt(self.high.spread**2 / len(self.high.values) + self.low.spread**2 / len(self.low.values))

    @property
    def _freedom(self) -> int:
        """Degrees of freedom of Welch's test, rounded down."""
        parts = [((one.spread or 0.0) ** 2 / len(one.values), len(one.values) - 1) for one in (self.high, self.low)]
        spreads = sum(part**2 / freedom for part, freedom in parts)
        return int(sum(part for part, _ in parts) ** 2 / spreads) if spreads else sum(freedom for _, freedom in parts)

    @property
    def word(self) -> Word:
        """Decided by Welch's t-test at the 5% level, three seeds on each side."""
        if self.error is None or min(len(self.high.values), len(self.low.values)) < SEEDS:
            return "undecided"
        critical = _STUDENT_T[min(max(self._freedom, 1), len(_STUDENT_T)) - 1]
        if abs(self.value) <= critical * self.error:
            return "undecided"
        return "reproduced at this scale" if self.value > 0 else "not reproduced"

    def __str__(self) -> str:
        seeds = min(len(self.high.values), len(self.low.values))
        if self.error is None or seeds < SEEDS:
            return f"{self.value:+.4g}, with only {seeds} seed{'s' * (seeds > 1)} on one side"
        return f"{self.value:+.4g} with standard error {self.error:.2g}"
