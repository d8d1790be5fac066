"""What a report is made from: runs, what was measured of them, and what they say together. Plain data, no torch."""

from keysift.bench.record import Result
from keysift.core.config import config
from keysift.evaluate.measured_runs import Scaling, Stability
from keysift.evaluate.records import Record
from keysift.runs.summary import Summary


@config
class Sample:
    step: int
    text: str


@config
class ReportRun:
    """One run and the records that lie in its folder evals."""

    name: str
    """Short, and different for each run of the report."""
    summary: Summary
    stream: str
    """Hash of the tokens it was trained on and their order."""
    command: str
    """How its training was started."""
    seconds: float | None
    """Training time."""
    flops: float | None
    """Of the whole training."""
    machine: str
    records: tuple[Record, ...]
    samples: tuple[Sample, ...]

    @property
    def tokens(self) -> int:
        """Tokens trained on."""
        each = self.summary.settings.get("batch_tokens")
        return self.summary.step * (each if isinstance(each, int) else 0)

    @property
    def rate(self) -> float:
        return float(self.summary.settings.get("lr") or 0.0)


@config
class Report:
    title: str
    command: str
    date: str
    runs: tuple[ReportRun, ...]
    stability: tuple[Stability, ...] = ()
    scaling: tuple[Scaling, ...] = ()
    latency: tuple[Result, ...] = ()
    summary: tuple[str, ...] = ()
    """What to see, in a few sentences."""
    notes: tuple[str, ...] = ()
    """What was left out, and why."""
