"""What a benchmark gathers while it runs, and how that becomes a record."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from keysift.bench.record import Result, Row, Target
from keysift.core.provenance import Machine

Say = Callable[[str], None]


@dataclass
class Gathered:
    """`say` reports progress to a person; rows, targets and notes (what was not measured, and why) go to the record."""

    machine: Machine
    say: Say
    rows: list[Row] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def result(self, benchmark: str, command: str) -> Result:
        return Result(
            benchmark=benchmark,
            command=command,
            date=datetime.now(UTC).strftime("%Y-%m-%d"),
            machine=self.machine,
            rows=tuple(self.rows),
            targets=tuple(self.targets),
            notes=tuple(self.notes),
        )
