"""Records of training runs: the summary of one run, and a comparison of several."""

from pathlib import Path
from typing import Any

from keysift.core.config import config
from keysift.core.statistics import Sample


@config
class RunSummary:
    """Summary of one run, for lists, tables and pages."""

    path: str
    arch: str
    settings: dict[str, Any]
    """The resolved config by flag name."""
    parameters: int
    data: str
    step: int
    steps: int | None
    saved: int
    """Step of the newest checkpoint; 0 without a checkpoint."""
    state: str
    """"running", "finished", "time over", "stopped" or "diverged"."""
    loss: float | None
    val_loss: float | None
    """The newest of `validations`."""
    bits_per_byte: float | None
    accuracy: float | None
    """Of the newest validation, if the targets are answers of a task."""
    tokens_per_second: float | None
    losses: tuple[float, ...]
    validations: tuple[tuple[int, float], ...]
    """Step and loss of every validation."""

    @property
    def name(self) -> str:
        return Path(self.path).name

    @property
    def model(self) -> str:
        """Architecture, size and mechanism, e.g. "multiscreen psi 6, screening" or "transformer 4x4x128, softmax"."""
        settings = self.settings
        depth, width = settings.get("depth"), settings.get("width")
        heads = settings.get("tiles", settings.get("heads"))
        if None in (depth, heads, width):
            return self.arch
        if self.arch == "multiscreen":
            is_psi = depth == heads and isinstance(depth, int) and width == depth**2
            return f"{self.arch} {f'psi {depth}' if is_psi else f'{depth}x{heads}x{width}'}, screening"
        mechanism = settings.get("mechanism", "softmax")
        name = mechanism if isinstance(mechanism, str) else "/".join(map(str, mechanism))
        return f"{self.arch} {depth}x{heads}x{width}, {name}"


@config
class RunLabel:
    """Short names of a run among others: what differs between them."""

    name: str
    """Unique. The name of the directory if all are short, otherwise what differs."""
    group: str
    """Shared by runs that differ in their seed only."""
    model: str
    """Shared by runs that differ in seed and learning rate only."""


@config
class ComparedRun:
    """One run of a comparison."""

    name: str
    """Name of its directory."""
    label: RunLabel
    model: str
    differs: dict[str, str]
    """Settings that differ between the runs, by name."""
    seed: str
    parameters: int
    state: str
    step: int
    steps: int | None
    loss: float | None
    validation: float | None
    bits_per_byte: float | None
    accuracy: float | None
    tokens_per_second: float | None
    best: bool
    losses: tuple[float, ...]
    validations: tuple[tuple[int, float], ...]


@config
class RunGroup:
    """Runs that differ in their seed only."""

    label: str
    model: str
    differs: dict[str, str]
    parameters: int
    val_losses: Sample
    """Validation losses, one per run."""
    accuracy: float | None
    """Mean accuracy, if every run has one."""
    best: bool


@config
class Comparison:
    """Runs and groups of runs, best first. `fields` are the settings that differ."""

    fields: tuple[str, ...]
    runs: tuple[ComparedRun, ...]
    groups: tuple[RunGroup, ...]
