"""Free memory of the system and of the control groups of this process, and what the allocator keeps."""

import ctypes
import os
from pathlib import Path

from keysift.core import cgroups
from keysift.core.errors import UnsupportedError
from keysift.core.number import data_size

MEMINFO = Path("/proc/meminfo")
# Limit and usage in each version of cgroups.
_FILES = {2: ("memory.max", "memory.current"), 1: ("memory.limit_in_bytes", "memory.usage_in_bytes")}


def available() -> int | None:
    """Free bytes: the minimum over the system and the control groups; None if neither is known."""
    free = []
    if MEMINFO.exists():
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines() if ":" in line)
        if "MemAvailable" in lines:
            free.append(int(lines["MemAvailable"].split()[0]) * 1024)
    elif hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        free.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for folder, version in cgroups.folders("memory", cgroups.ROOT, cgroups.GROUPS):
        limit, used = (cgroups.read_number(folder / name) for name in _FILES[version])
        if limit is not None and used is not None:
            free.append(limit - used)
    return min(free) if free else None


def keep_freed_memory() -> bool:
    """Let the allocator of this process keep freed memory. Returns whether the C library supports it.

    A training step frees hundreds of megabytes and needs them again at once. If they go back to the system in between,
    every page is zeroed anew.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False  # not glibc
    # M_TRIM_THRESHOLD, the largest value; M_MMAP_THRESHOLD, the largest that glibc accepts.
    return bool(mallopt(-1, 2**31 - 1)) and bool(mallopt(-3, 32 * 2**20))


def require(size: float, what: str, remedy: str) -> None:
    """Raise UnsupportedError if `what` needs more bytes than are free."""
    free = available()
    if free is not None and size > free:
        raise UnsupportedError(f"{what} needs about {data_size(size)}, {data_size(free)} are free; {remedy}")
