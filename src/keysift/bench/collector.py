"""Collect the rows, targets and notes of a benchmark, and resume a benchmark that was interrupted.

A measurement that takes minutes goes through `Collector.measure_once`. It is saved in a draft file beside the record as
soon as it is done. The next run of the same command on the same machine and commit reads it from there.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from keysift.core import safe_json
from keysift.core.provenance import Machine
from keysift.records.bench import Result, Row, Target

Log = Callable[[str], None]
_drafts: list[tuple[Path, str]] = []


@contextmanager
def resumable(path: Path, command: str) -> Iterator[None]:
    """Save measurements in a draft at `path` inside this context. The draft is removed at the end unless it raises."""
    _drafts.append((path, command))
    try:
        yield
        path.unlink(missing_ok=True)
    finally:
        _drafts.pop()


@dataclass
class Collector:
    """The content of a record. `notes` say what was not measured and why; `log` reports progress."""

    machine: Machine
    log: Log
    rows: list[Row] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    measurements: dict[str, Any] = field(default_factory=dict)

    def measure_once(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return the result of `measure` (plain JSON values), or the saved one if this was measured before."""
        if name not in self.measurements:
            self.measurements |= self._read_draft()
            known = name in self.measurements
            self.log(f"{name}: measured before" if known else name)
            if not known:
                self.measurements[name] = measure()
                self._save(name)
        return self.measurements[name]

    def _header(self, command: str) -> list[Any]:
        """First line of a draft. A draft with another header is ignored."""
        return [command, self.machine.cpu, self.machine.threads, self.machine.instruction_set, self.machine.commit]

    def _read_draft(self) -> dict[str, Any]:
        for path, command in _drafts[-1:]:
            lines = _complete_lines(path)
            kept = lines if lines and lines[0] == self._header(command) else [self._header(command)]
            path.write_text("".join(json.dumps(line) + "\n" for line in kept))
            return dict(kept[1:])
        return {}

    def _save(self, name: str) -> None:
        for path, _ in _drafts[-1:]:
            with path.open("a") as file:
                file.write(json.dumps([name, self.measurements[name]]) + "\n")

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


def _complete_lines(path: Path) -> list[Any]:
    """Parsed lines up to the first that is incomplete: a killed process may have written half a line."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            lines.append(safe_json.loads(line))
        except ValueError:
            break
    return lines
