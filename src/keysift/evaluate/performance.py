"""What a benchmark found, as plain data: the JSON, the tables and the plot are all made from this. No torch."""

from typing import Literal

from keysift.core.config import config


@config
class Spread:
    """The median and the quartiles of several samples."""

    median: float
    low: float
    high: float


@config
class Machine:
    """Where and with what it was measured, and what the machine can do at best."""

    cpu: str
    cores: int
    threads: int
    memory_gb: float
    instruction_set: str
    """The variant of the kernel that ran."""
    python: str
    torch: str
    keysift: str
    commit: str
    load: float
    """Processes that wanted a core in the minute before; on a quiet machine near zero."""
    sgemm_gflops: float
    """The best of torch's fp32 matrix products."""
    read_gb_per_s: float
    """The best of summing memory larger than the caches."""


@config
class Row:
    """One thing timed, and what it was timed against in the same rounds."""

    tokens: int
    tiles: int
    window: str
    acceptance: float | None
    """The width r of every tile; null where it is learned."""
    step: Literal["forward", "backward", "forward + backward", "training step"]
    seconds: Spread
    against: str = ""
    their_seconds: Spread | None = None
    speedup: Spread | None = None
    """Their seconds over ours, taken round by round."""
    sgemm_share: float | None = None
    """Two operations for each channel of each pair inside the window, over time and peak; skipping can exceed one."""
    read_share: float | None = None
    """Inputs and outputs touched once, over time and bandwidth."""
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
class Performance:
    """One run of a benchmark."""

    command: str
    date: str
    machine: Machine
    rows: tuple[Row, ...]
    targets: tuple[Target, ...]
    notes: tuple[str, ...] = ()
    """What was not measured, and why."""


def at_least(name: str, value: float, target: float, *, full_size: bool, unit: str = "x") -> Target:
    met = value >= target if full_size else None
    return Target(name=name, value=value, target=target, met=met, bound="at least", unit=unit)


def at_most(name: str, value: float, target: float, *, full_size: bool, unit: str = "") -> Target:
    met = value <= target if full_size else None
    return Target(name=name, value=value, target=target, met=met, bound="at most", unit=unit)
