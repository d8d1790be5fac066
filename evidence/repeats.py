"""A recorded run trained a second time: is the result the same, to within the spread over seeds?"""

from collections.abc import Sequence
from dataclasses import dataclass

from evidence.claims.groups import group_by_seed
from evidence.records import RunRecord


@dataclass(frozen=True)
class Repeat:
    """The second record of a run, and the records of the study, which contain the first."""

    second: RunRecord
    records: Sequence[RunRecord]

    @property
    def _first(self) -> RunRecord:
        return next(record for record in self.records if record.name == self.second.name)

    @property
    def _std(self) -> float | None:
        """Standard deviation of the loss over the seeds of the run's group."""
        group = next(group for group in group_by_seed(self.records) if self._first in group.records)
        return None if group.losses is None else group.losses.std

    @property
    def difference(self) -> float | None:
        """Second validation loss minus the first; None where either run has none."""
        if self.second.val_loss is None or self._first.val_loss is None:
            return None
        return self.second.val_loss - self._first.val_loss

    @property
    def agrees(self) -> bool:
        """Same state, and a loss within one standard deviation over seeds; with a single seed, the same loss."""
        if self.second.state != self._first.state:
            return False
        return self.difference is None or abs(self.difference) <= (self._std or 0.0)

    def __str__(self) -> str:
        name, agreement = self.second.name, "the runs agree" if self.agrees else "the runs disagree"
        if self.second.state != self._first.state:
            return f"`{name}`: {self.second.state}, but the record says {self._first.state}; {agreement}"
        if self.difference is None:
            return f"`{name}`: {self.second.state} both times; {agreement}"
        spread = "one seed" if self._std is None else f"standard deviation over seeds {self._std:.2g}"
        loss = "identical loss" if self.difference == 0 else f"loss {self.difference:+.2g} from the record"
        return f"`{name}`: {loss} ({self.second.val_loss:.4f}; {spread}): {agreement}"
