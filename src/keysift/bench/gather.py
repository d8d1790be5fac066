"""What a benchmark gathers while it runs, how that becomes a record, and how a run that was stopped goes on.

A measurement of minutes is a cell: kept in a draft beside the record as soon as it is done, and taken from there by the
next run of the same command on the same machine and commit. What a record says is worked out from the cells.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from keysift.bench.record import Result, Row, Target
from keysift.core import jsons
from keysift.core.provenance import Machine

Say = Callable[[str], None]
_drafts: list[tuple[Path, str]] = []


@contextmanager
def drafting(path: Path, command: str) -> Iterator[None]:
    """Within, cells are kept at `path`, which is removed once everything is measured."""
    _drafts.append((path, command))
    try:
        yield
        path.unlink(missing_ok=True)
    finally:
        _drafts.pop()


@dataclass
class Gathered:
    """`say` reports progress to a person; rows, targets and notes (what was not measured, and why) go to the record."""

    machine: Machine
    say: Say
    rows: list[Row] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cells: dict[str, Any] = field(default_factory=dict)

    def cell(self, name: str, measure: Callable[[], Any]) -> Any:
        """What `measure` finds (plain JSON values), or found earlier in this run or in the one before it."""
        if name not in self.cells:
            self.cells |= self._drafted()
            known = name in self.cells
            self.say(f"{name}: measured before" if known else name)
            if not known:
                self.cells[name] = measure()
                self._keep(name)
        return self.cells[name]

    def _header(self, command: str) -> list[Any]:
        """A draft of other code or another machine says nothing about this one."""
        return [command, self.machine.cpu, self.machine.threads, self.machine.instruction_set, self.machine.commit]

    def _drafted(self) -> dict[str, Any]:
        for path, command in _drafts[-1:]:
            lines = _whole_lines(path)
            kept = lines if lines and lines[0] == self._header(command) else [self._header(command)]
            path.write_text("".join(json.dumps(line) + "\n" for line in kept))
            return dict(kept[1:])
        return {}

    def _keep(self, name: str) -> None:
        for path, _ in _drafts[-1:]:
            with path.open("a") as file:
                file.write(json.dumps([name, self.cells[name]]) + "\n")

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


def _whole_lines(path: Path) -> list[Any]:
    """A kill may have left half of the last one."""
    lines = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            lines.append(jsons.loads(line))
        except ValueError:
            break
    return lines
