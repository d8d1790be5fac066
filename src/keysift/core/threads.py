"""Choose the number of threads and how they wait, before torch is imported: torch reads the settings only once.

Two threads on one free core are many times slower than one: each parallel step waits for a thread that is not running,
while the other spins on the core it needs. So only free cores are counted, and waiting threads sleep.
"""

import os
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from keysift.core import cgroups
from keysift.core.errors import RangeError

NUM_THREADS = "OMP_NUM_THREADS"
# GNU's and Intel's (LLVM's) settings that make waiting threads sleep instead of spin. GNU's threads first spin for some
# tens of microseconds: about a thousand times in a training step, the next parallel part begins within that time, and
# waking a thread takes as long.
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "0"}
_MIN_SECONDS = 0.1  # needed to measure the load: the kernel counts in ticks of a hundredth of a second


@dataclass(frozen=True)
class Machine:
    """Cores that this process may use, and how busy other processes keep them."""

    cores: int
    """Cores in the affinity mask of this process."""
    quota: float | None
    """CPU quota of the control group in cores; None if unlimited."""
    busy: float
    """Cores that other processes keep busy."""
    load: float
    """Load average over a minute, including this process."""

    @property
    def usable(self) -> int:
        """Cores that this process could use on an idle machine."""
        return max(1, self.cores if self.quota is None else min(self.cores, int(self.quota)))

    @property
    def free(self) -> int:
        """Idle cores, at least one."""
        return max(1, min(self.usable, round(self.cores - self.busy)))

    @property
    def crowded(self) -> bool:
        return round(self.cores - self.busy) < self.usable


@dataclass(frozen=True)
class Choice:
    """The number of threads and where it came from."""

    threads: int
    by: Literal["--threads", "OMP_NUM_THREADS", "the machine"]
    machine: Machine

    def warning(self) -> str | None:
        """A warning if other processes keep the machine busy."""
        machine = self.machine
        if not machine.crowded:
            return None
        reason = f"other processes keep {machine.busy:.1f} of {machine.cores} cores busy (load {machine.load:.1f})"
        if self.by == "the machine":
            return f"{reason}: using {_plural(self.threads)}; --threads N overrides it"
        if self.threads > machine.free:
            return (
                f"{reason}: {_plural(self.threads)} set by {self.by} will wait for each other; "
                f"try --threads {machine.free}"
            )
        return None


def _plural(threads: int) -> str:
    return f"{threads} thread{'s' if threads > 1 else ''}"


class BusyCores:
    """Measures how many cores other processes keep busy, from construction to each call of `count`."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        self._start = self._read()

    def _read(self) -> tuple[float, float, dict[int, int]]:
        """The time, our own CPU time, and the idle ticks of each core."""
        idle = {}
        try:
            for line in self._stat.read_text().splitlines():
                name, *ticks = line.split()
                if name.startswith("cpu") and name != "cpu":
                    idle[int(name.removeprefix("cpu"))] = int(ticks[3]) + int(ticks[4])
        except (OSError, ValueError, IndexError):
            idle = {}  # not Linux, or a sandbox
        return time.monotonic(), time.process_time(), idle

    def count(self, cores: set[int]) -> float:
        """Busy cores among `cores`. Uses the load average where /proc/stat cannot be read."""
        time.sleep(max(0.0, self._start[0] + _MIN_SECONDS - time.monotonic()))
        (start, own_start, idle_start), (now, own, idle) = self._start, self._read()
        if not cores <= idle.keys() & idle_start.keys():
            return min(_load(), float(len(cores)))
        seconds = now - start
        idle_cores = sum(idle[core] - idle_start[core] for core in cores) / os.sysconf("SC_CLK_TCK") / seconds
        return max(0.0, len(cores) - idle_cores - (own - own_start) / seconds)


def examine(busy: BusyCores | None = None) -> Machine:
    """Measure the machine. Takes a tenth of a second, less if `busy` is older."""
    cores = _affinity()
    return Machine(cores=len(cores), quota=quota(), busy=(busy or BusyCores()).count(cores), load=_load())


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _load() -> float:
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return 0.0


def quota(root: Path = cgroups.ROOT, groups: Path = cgroups.GROUPS) -> float | None:
    """The smallest CPU quota of the control groups of this process, in cores; None if unlimited."""
    quotas = [_quota_of(folder, version) for folder, version in cgroups.folders("cpu", root, groups)]
    return min((cores for cores in quotas if cores is not None), default=None)


def _quota_of(folder: Path, version: int) -> float | None:
    if version == 2:
        granted, period = folder / "cpu.max", folder / "cpu.max"
    else:
        granted, period = folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us"
    try:
        time_granted, time_period = int(granted.read_text().split()[0]), int(period.read_text().split()[-1])
    except (OSError, ValueError, IndexError):
        return None  # "max", or no such file
    return time_granted / time_period if time_granted > 0 and time_period > 0 else None


def choose(threads: int | None, machine: Machine, environment: Mapping[str, str] = os.environ) -> Choice:
    """The number of threads: from the flag, else from the environment, else the number of free cores."""
    most = os.cpu_count() or 1
    if threads is not None:
        if not 1 <= threads <= most:
            raise RangeError(f"--threads must lie in 1 to {most}, the cores of this machine, got {threads}")
        return Choice(threads, "--threads", machine)
    value = environment.get(NUM_THREADS, "").split(",")[0].strip()
    if value.isdecimal() and int(value) > 0:
        return Choice(int(value), "OMP_NUM_THREADS", machine)
    return Choice(machine.free, "the machine", machine)


def apply(choice: Choice, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the environment variables that OpenMP reads. A wait policy that the user set is kept."""
    environment[NUM_THREADS] = str(choice.threads)
    if "OMP_WAIT_POLICY" not in environment:
        for name, value in PASSIVE.items():
            environment.setdefault(name, value)


def child_environment(processes: int, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment for each of several processes that run side by side: they divide the free cores."""
    choice = choose(None, examine(), environment)
    if choice.by == "the machine":
        choice = replace(choice, threads=max(1, choice.threads // processes))
    child = dict(environment)
    apply(choice, child)
    return child
