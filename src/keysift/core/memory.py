"""How much memory can still be had, and a refusal where the work would need more."""

import os
from contextlib import suppress
from pathlib import Path

from keysift.core.errors import UnsupportedError

MEMINFO = Path("/proc/meminfo")
LIMIT, USED = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")


def available() -> int | None:
    """Bytes, the least of what the system and the container leave; None where neither says."""
    found = []
    if MEMINFO.exists():
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines() if ":" in line)
        if "MemAvailable" in lines:
            found.append(int(lines["MemAvailable"].split()[0]) * 1024)
    elif hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError, ValueError):  # no container, or one without a limit
        found.append(int(LIMIT.read_text()) - int(USED.read_text()))
    return min(found) if found else None


def need(size: float, what: str, remedy: str) -> None:
    """Refuse before the work starts, not in the middle of it."""
    room = available()
    if room is not None and size > room:
        raise UnsupportedError(f"{what} needs about {size / 1e9:.1f} GB, {room / 1e9:.1f} GB are free; {remedy}")
