"""Records of benchmarks."""

from pathlib import Path
from typing import Literal

from keysift.core.config import config, load
from keysift.core.errors import DataError
from keysift.core.provenance import Machine

Step = Literal["forward", "backward", "forward + backward", "training step", "decode", "tokenise"]


@config
class Quartiles:
    """Median and quartiles of several samples."""

    median: float
    low: float
    high: float


@config
class Row:
    """One measurement, with the baseline that was timed in the same rounds."""

    what: str
    """Name of the measured case. Rows with equal `what` and `setting` form a curve over `tokens`."""
    setting: str = ""
    """Fixed parameters: heads, batch, instruction set."""
    tokens: int
    """Length of the sequence, context or text."""
    step: Step
    seconds: Quartiles
    against: str = ""
    their_seconds: Quartiles | None = None
    speedup: Quartiles | None = None
    """Seconds of the baseline divided by `seconds`, round by round."""
    sgemm_share: float | None = None
    """FLOP/s as a share of the SGEMM peak, counting two operations per channel and pair in the window.

    For a training step of a model, six operations per parameter and token.

    Exceeds one if the kernel skips pairs.
    """
    read_share: float | None = None
    """Bytes of inputs and outputs per second, as a share of the memory bandwidth."""
    tokens_per_s: float | None = None
    mb_per_s: float | None = None
    extra_mb: float | None = None
    """Peak memory in addition to inputs and outputs."""
    cache_bytes: int | None = None
    note: str = ""


@config
class Target:
    """A target of speed or size. `met` is null if the measured size is not that of the target."""

    name: str
    value: float
    target: float
    met: bool | None
    bound: Literal["at least", "at most"]
    unit: str


@config
class Result:
    """Result of one run of a benchmark."""

    benchmark: str
    command: str
    date: str
    machine: Machine
    rows: tuple[Row, ...]
    targets: tuple[Target, ...] = ()
    notes: tuple[str, ...] = ()
    """What was not measured, with the reason."""


def read_result(path: Path) -> Result:
    """Read a result that keysift bench wrote with --out."""
    if not path.is_file():
        raise DataError(f"no result at {path}; write one with keysift bench NAME --out {path}")
    return load(Result, path)


def at_least(name: str, value: float, target: float, *, full_size: bool, unit: str = "x") -> Target:
    met = value >= target if full_size else None
    return Target(name=name, value=value, target=target, met=met, bound="at least", unit=unit)


def at_most(name: str, value: float, target: float, *, full_size: bool, unit: str = "") -> Target:
    met = value <= target if full_size else None
    return Target(name=name, value=value, target=target, met=met, bound="at most", unit=unit)
