"""How many threads to compute with, and how they wait; decided before torch is imported, which reads it once.

Two threads on one free core are many times slower than one: each parallel step waits for a thread that is not running,
while the other one spins on the core it would need. So only free cores are counted, and waiting threads sleep.
"""

import os
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from keysift.core.errors import RangeError

NUMBER = "OMP_NUM_THREADS"
# GNU's and Intel's (LLVM's) names for: a waiting thread sleeps instead of spinning.
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
_SHORTEST = 0.1  # seconds that tell how busy the machine is; its clock ticks a hundred times a second


@dataclass(frozen=True)
class Machine:
    """What of the machine this process may use, and what others use of it now."""

    cores: int
    """Cores this process may run on."""
    quota: float | None
    """Cores' worth of time its control group grants, if it is limited."""
    busy: float
    """Of the cores, how many others keep busy."""
    load: float
    """Processes that want to run, averaged over a minute, ours among them."""

    @property
    def usable(self) -> int:
        """Cores that would be free if nobody else were here."""
        return max(1, self.cores if self.quota is None else min(self.cores, int(self.quota)))

    @property
    def free(self) -> int:
        """At least one: a thread that shares its core is slow, but waits for no other."""
        return max(1, min(self.usable, round(self.cores - self.busy)))

    @property
    def crowded(self) -> bool:
        return round(self.cores - self.busy) < self.usable


@dataclass(frozen=True)
class Choice:
    """The number of threads and who chose it."""

    threads: int
    by: Literal["--threads", "OMP_NUM_THREADS", "the machine"]
    machine: Machine

    def warning(self) -> str | None:
        """For people, when others keep the machine busy."""
        machine = self.machine
        if not machine.crowded:
            return None
        seen = f"others keep {machine.busy:.1f} of {machine.cores} cores busy (load {machine.load:.1f})"
        if self.by == "the machine":
            return f"{seen}: computing with {_counted(self.threads)}; --threads N decides otherwise"
        if self.threads > machine.free:
            return (
                f"{seen}: {_counted(self.threads)} by {self.by} will wait for each other; try --threads {machine.free}"
            )
        return None


def _counted(threads: int) -> str:
    return f"{threads} thread{'s' if threads > 1 else ''}"


class Busy:
    """How busy others keep the given cores, from its making to each question."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        self._before = self._read()

    def _read(self) -> tuple[float, float, dict[int, int]]:
        """The time, our own processor time, and the idle ticks of each core."""
        idle = {}
        try:
            for line in self._stat.read_text().splitlines():
                name, *ticks = line.split()
                if name.startswith("cpu") and name != "cpu":
                    idle[int(name.removeprefix("cpu"))] = int(ticks[3]) + int(ticks[4])
        except (OSError, ValueError, IndexError):
            idle = {}  # not Linux, or a sandbox
        return time.monotonic(), time.process_time(), idle

    def cores(self, among: set[int]) -> float:
        time.sleep(max(0.0, self._before[0] + _SHORTEST - time.monotonic()))
        (began, own_began, idle_before), (now, own, idle) = self._before, self._read()
        if not among <= idle.keys() & idle_before.keys():
            return min(_load(), float(len(among)))
        idled = sum(idle[core] - idle_before[core] for core in among) / os.sysconf("SC_CLK_TCK") / (now - began)
        return max(0.0, len(among) - idled - (own - own_began) / (now - began))


def examine(busy: Busy | None = None) -> Machine:
    cores = _cores()
    return Machine(cores=len(cores), quota=quota(), busy=(busy or Busy()).cores(cores), load=_load())


def _cores() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _load() -> float:
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return 0.0


def quota(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> float | None:
    """The least that the control groups of this process grant, in cores; both versions of them."""
    try:
        lines = [line.split(":", 2) for line in groups.read_text().splitlines()]
    except OSError:
        return None
    found = []
    for _, controllers, path in lines:
        if controllers == "":
            top, read = root, _version_2
        elif "cpu" in controllers.split(","):
            top, read = next((t for t in (root / controllers, root / "cpu") if t.is_dir()), root), _version_1
        else:
            continue
        # A container sees its own group as the top, whatever its path says.
        inside = top / path.lstrip("/")
        found += [read(folder) for folder in (inside, *inside.parents) if folder.is_relative_to(top)]
    return min((granted for granted in found if granted is not None), default=None)


def _version_2(folder: Path) -> float | None:
    return _ratio(folder / "cpu.max", folder / "cpu.max")


def _version_1(folder: Path) -> float | None:
    return _ratio(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")


def _ratio(granted: Path, period: Path) -> float | None:
    try:
        time_granted, of = int(granted.read_text().split()[0]), int(period.read_text().split()[-1])
    except (OSError, ValueError, IndexError):
        return None  # "max", or no such file
    return time_granted / of if time_granted > 0 and of > 0 else None


def choose(asked: int | None, machine: Machine, environment: Mapping[str, str] = os.environ) -> Choice:
    """What was asked for, else what the environment says, else the free cores."""
    most = os.cpu_count() or 1
    if asked is not None:
        if not 1 <= asked <= most:
            raise RangeError(f"--threads must lie in 1 to {most}, the cores of this machine, got {asked}")
        return Choice(asked, "--threads", machine)
    said = environment.get(NUMBER, "").split(",")[0].strip()
    if said.isdecimal() and int(said) > 0:
        return Choice(int(said), "OMP_NUM_THREADS", machine)
    return Choice(machine.free, "the machine", machine)


def settle(choice: Choice, environment: MutableMapping[str, str] = os.environ) -> None:
    """Tell the libraries that will be loaded; what the user said about waiting stays."""
    environment[NUMBER] = str(choice.threads)
    if "OMP_WAIT_POLICY" not in environment:
        for name, value in PASSIVE.items():
            environment.setdefault(name, value)


def share(processes: int, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of each of several processes that compute beside each other; asked before they start."""
    choice = choose(None, examine(), environment)
    if choice.by == "the machine":
        choice = replace(choice, threads=max(1, choice.threads // processes))
    theirs = dict(environment)
    settle(choice, theirs)
    return theirs
