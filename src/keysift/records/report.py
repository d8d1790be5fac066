"""Record of a report: runs with their evaluations, learning-rate and scaling results, latencies."""

from keysift.core.config import config
from keysift.records.bench import Result
from keysift.records.evaluation import Record
from keysift.records.runs import RunLabel, RunSummary
from keysift.records.trials import Scaling, Stability


@config
class TextSample:
    """Text generated at a training step."""

    step: int
    text: str


@config
class ReportRun:
    """A run and the records of its evaluations."""

    label: RunLabel
    summary: RunSummary
    stream: str
    """Hash of the training tokens in their order."""
    command: str
    """Command that started the training."""
    seconds: float | None
    """Training time."""
    flops: float | None
    """Total training FLOPs."""
    machine: str
    records: tuple[Record, ...]
    samples: tuple[TextSample, ...]

    @property
    def name(self) -> str:
        """Short name, unique in the report."""
        return self.label.name

    @property
    def tokens(self) -> int:
        """Tokens trained on."""
        batch_tokens = self.summary.settings.get("batch_tokens")
        return self.summary.step * (batch_tokens if isinstance(batch_tokens, int) else 0)

    @property
    def lr(self) -> float:
        return float(self.summary.settings.get("lr") or 0.0)


@config
class Report:
    """The content of a report page."""

    title: str
    command: str
    date: str
    runs: tuple[ReportRun, ...]
    stability: tuple[Stability, ...] = ()
    scaling: tuple[Scaling, ...] = ()
    latency: tuple[Result, ...] = ()
    summary: tuple[str, ...] = ()
    """Main results in a few sentences."""
    notes: tuple[str, ...] = ()
    """What the report lacks, and why."""
