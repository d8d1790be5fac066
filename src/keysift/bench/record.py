"""What a benchmark found, as plain data: the JSON, the tables and the plots are all made from this. No torch."""

from typing import Literal

from keysift.core.config import config
from keysift.core.provenance import Machine

Step = Literal["forward", "backward", "forward + backward", "training step", "decode", "tokenise"]


@config
class Spread:
    """The median and the quartiles of several samples."""

    median: float
    low: float
    high: float


@config
class Row:
    """One thing timed, and what it was timed against in the same rounds."""

    what: str
    """What was timed. Rows that share this and `setting` are one curve over `tokens`."""
    setting: str = ""
    """Sizes and choices that are not the subject: heads, batch, instruction set."""
    tokens: int
    """Length of the sequence, of the context, or of the text."""
    step: Step
    seconds: Spread
    against: str = ""
    their_seconds: Spread | None = None
    speedup: Spread | None = None
    """Their seconds over ours, taken round by round."""
    sgemm_share: float | None = None
    """Two operations for each channel of each pair inside the window, over time and peak; skipping can exceed one."""
    read_share: float | None = None
    """Inputs and outputs touched once, over time and bandwidth."""
    tokens_per_s: float | None = None
    mb_per_s: float | None = None
    extra_mb: float | None = None
    """Peak memory beyond inputs and outputs."""
    cache_bytes: int | None = None
    note: str = ""


@config
class Target:
    """A promise of speed or size. `met` is null where the measured size is not the one the target is about."""

    name: str
    value: float
    target: float
    met: bool | None
    bound: Literal["at least", "at most"]
    unit: str


@config
class Result:
    """One run of a benchmark."""

    benchmark: str
    command: str
    date: str
    machine: Machine
    rows: tuple[Row, ...]
    targets: tuple[Target, ...] = ()
    notes: tuple[str, ...] = ()
    """What was not measured, and why."""


def at_least(name: str, value: float, target: float, *, full_size: bool, unit: str = "x") -> Target:
    met = value >= target if full_size else None
    return Target(name=name, value=value, target=target, met=met, bound="at least", unit=unit)


def at_most(name: str, value: float, target: float, *, full_size: bool, unit: str = "") -> Target:
    met = value <= target if full_size else None
    return Target(name=name, value=value, target=target, met=met, bound="at most", unit=unit)
