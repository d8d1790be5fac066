"""Peak memory of a call beyond its inputs and outputs. Measure it in a separate process.

It is the peak resident memory, minus the resident memory before the call, minus the outputs. Memory that is reserved
but never written does not count.
"""

import ctypes
import math
from collections.abc import Callable
from pathlib import Path

from keysift.core.memory import available

STATUS = Path("/proc/self/status")
RESET_PEAK = "5"  # writing this to clear_refs resets the peak (VmHWM) to the current size


def can_measure() -> bool:
    """Whether the system reports resident memory (Linux)."""
    return STATUS.exists()


def free_bytes() -> float:
    """Available memory, or infinity where the system does not report it."""
    size = available()
    return math.inf if size is None else size


def peak_mb(run: Callable[[], object], output_bytes: int) -> float:
    """Peak memory of `run()` in megabytes. `output_bytes` is the size of its result."""
    _trim_heap()
    _reset_peak()
    before = _status_bytes("VmRSS")
    result = run()
    peak = _status_bytes("VmHWM")
    del result
    return (peak - before - output_bytes) / 1e6


def _trim_heap() -> None:
    """Return freed memory to the system. Otherwise the call could reuse it without raising the peak."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _reset_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text(RESET_PEAK)
    except OSError:
        # Without permission an earlier peak remains, so the result may be too large but never too small.
        return


def _status_bytes(field: str) -> int:
    """A field of /proc/self/status, in bytes."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024
