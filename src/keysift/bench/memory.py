"""Peak memory of a call beyond its inputs and outputs; best measured in a process of its own.

The peak of resident memory over what was resident before the call, less the outputs. Pages are counted, not promises:
scratch that is reserved but never touched costs nothing.
"""

import ctypes
import math
from collections.abc import Callable
from pathlib import Path

STATUS, MEMINFO = Path("/proc/self/status"), Path("/proc/meminfo")
FORGET_PEAK = "5"  # what clear_refs reads as: let the high-water mark start anew


def measurable() -> bool:
    return STATUS.exists()


def free_bytes() -> float:
    """Memory that is free, or infinite where the system does not say."""
    lines = MEMINFO.read_text().splitlines() if MEMINFO.exists() else []
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    return free[0] if free else math.inf


def peak_mb(run: Callable[[], object], outputs: int) -> float:
    """Megabytes; `outputs` are the bytes that the call returns."""
    _give_back()
    _forget_peak()
    before = _resident("VmRSS")
    kept = run()
    peak = _resident("VmHWM")
    del kept
    return (peak - before - outputs) / 1e6


def _give_back() -> None:
    """Freed memory that malloc holds on to is resident already, and would hide what is taken from it again."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _forget_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text(FORGET_PEAK)
    except OSError:
        # Where that is not allowed the mark keeps an older peak: the figure can only come out too large.
        return


def _resident(field: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024
