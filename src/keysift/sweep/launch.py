"""Start the runs of a sweep: each in a process of its own on this machine."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

from keysift.core.threads import child_environment
from keysift.train.config import TrainConfig


class Process(Protocol):
    """A started run."""

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""

    def terminate(self) -> None:
        """Ask the run to save and exit."""

    def kill(self) -> None: ...


class Launcher(Protocol):
    """Starts runs, at most `slots` at a time."""

    @property
    def slots(self) -> int: ...

    def start(self, config: TrainConfig, path: Path, changes: dict[str, Any]) -> Process:
        """Start or resume the run in `path`. `changes` are the fields to change in its config file or stored config."""


class LocalLauncher:
    """Processes on this machine. They share the free cores, unless the user sets the number of threads."""

    def __init__(self, processes: int) -> None:
        self.slots = processes
        self._environment = child_environment(processes)

    def start(self, config: TrainConfig, path: Path, changes: dict[str, Any]) -> Process:
        # -P: do not import from the working directory, where the user may have a file such as numpy.py.
        command = [sys.executable, "-P", "-m", "keysift.sweep.child", str(config_file(path)), str(path)]
        command.append(json.dumps(changes))
        with log_file(path).open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=self._environment)


def log_file(path: Path) -> Path:
    """The log file, next to the run directory, because a run may fail before its directory exists."""
    return path.with_name(f"{path.name}.log")


def config_file(path: Path) -> Path:
    """The config file of a run, next to its directory."""
    return path.with_name(f"{path.name}.toml")
