"""A recorded run made a second time: does it say the same, within the spread over seeds? Free of torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from keysift.sweep.groups import Group, groups
from keysift.sweep.records import Record

AGAIN = "again"  # folder beside the records, with a file of the same name


@dataclass(frozen=True)
class Repeat:
    """`again` beside the record of its name among `records`."""

    again: Record
    records: Sequence[Record]

    @property
    def _first(self) -> Record:
        return next(one for one in self.records if one.name == self.again.name)

    @property
    def _group(self) -> Group:
        return next(one for one in groups(self.records) if self._first in one.records)

    @property
    def moved(self) -> float | None:
        """Validation loss of the second minus that of the first; None where either did not count."""
        if self.again.val_loss is None or self._first.val_loss is None:
            return None
        return self.again.val_loss - self._first.val_loss

    @property
    def holds(self) -> bool:
        """The same state, and a loss no further away than the standard deviation over seeds; without one, no further
        away than nothing."""
        if self.again.state != self._first.state:
            return False
        losses = self._group.losses
        spread = losses.spread if losses is not None else None
        return self.moved is None or abs(self.moved) <= (spread or 0.0)

    def __str__(self) -> str:
        losses = self._group.losses
        spread = losses.spread if losses is not None else None
        told = "no loss" if self.moved is None else f"loss {self.again.val_loss:.4f}, {self.moved:+.2g} from its record"
        beside = (
            "no spread, as it has one seed" if spread is None else f"a standard deviation over seeds of {spread:.2g}"
        )
        if self.again.state != self._first.state:
            told = f"{self.again.state} where the record says {self._first.state}"
        return f"`{self.again.name}`: {told}, beside {beside}; {'it holds' if self.holds else 'it does not hold'}"
