"""Free memory of the system and of the control groups of this process, and a check before work starts."""

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


def require(size: float, what: str, remedy: str) -> None:
    """Raise UnsupportedError if `what` needs more bytes than are free."""
    free = available()
    if free is not None and size > free:
        raise UnsupportedError(f"{what} needs about {data_size(size)}, {data_size(free)} are free; {remedy}")
