"""The run directory: everything a run was, in one folder.

train.json          the resolved config, the hash of the token stream, the size of the model
environment.json    one entry a session: versions, commit, machine, processes
metrics.jsonl       one line a step
samples/            what the model wrote at each checkpoint
checkpoints/        see checkpoint.py
config.json, ...    links to the newest checkpoint's model, so the folder itself loads with keysift.load
diagnosis.json      why a run stopped, if its loss was no number
"""

import fcntl
import json
import os
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from keysift.core import provenance
from keysift.core.config import config, from_dict, to_dict
from keysift.core.disk import write_whole
from keysift.core.errors import DataError
from keysift.models.save import CONFIG, WEIGHTS
from keysift.train import checkpoint
from keysift.train.config import TrainConfig
from keysift.train.distributed import World
from keysift.train.layout import CHECKPOINTS, ENVIRONMENT, LOCK, MANIFEST, SAMPLES, TRAIN, holds_a_run, name_of, steps


@config
class Facts:
    """What was decided when the run began."""

    config: TrainConfig
    stream: str
    """Hash of the tokens and their order."""
    parameters: int
    flops_per_token: float
    bytes_per_token: float


class Run:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / CHECKPOINTS
        self._lock: Any = None

    def claim(self) -> None:
        """Make room for a new run; refuses to write into another one or over a model."""
        if holds_a_run(self.path):
            raise DataError(
                f"{self.path} already holds a run; go on with keysift train --resume {self.path}, or choose "
                f"another --out"
            )
        for name in (CONFIG, WEIGHTS):
            if (self.path / name).exists():
                raise DataError(f"{self.path} already holds a {name}; choose another --out")
        try:
            (self.path / SAMPLES).mkdir(parents=True, exist_ok=True)
            self.checkpoints.mkdir(exist_ok=True)
        except OSError as error:
            raise DataError(f"{self.path} cannot be written ({error}); choose another --out") from error

    def facts(self) -> Facts:
        file = self.path / TRAIN
        if not holds_a_run(self.path):
            raise DataError(f"{self.path} holds no run: {TRAIN} is missing; start one with --out")
        try:
            return from_dict(Facts, json.loads(file.read_text()))
        except json.JSONDecodeError as error:
            raise DataError(f"{file} is not JSON ({error}); start a new run with --out") from error

    def lock(self) -> None:
        """One process trains in a directory at a time; the system frees the lock of a process that was killed."""
        self._lock = (self.path / LOCK).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.unlock()
            raise DataError(f"another process is training in {self.path}; wait for it or stop it") from error

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def newest(self) -> Path | None:
        """The newest checkpoint, compared with its hashes; None if there is none yet."""
        known = steps(self.checkpoints)
        if not known:
            return None
        path = self.checkpoints / name_of(known[-1])
        checkpoint.verify(path)
        return path

    def link_model(self) -> None:
        """Let the folder itself be loaded. The names are links through `last`, so they never need to change."""
        last = Path(CHECKPOINTS) / checkpoint.LAST
        names = [path.name for path in (self.path / last).iterdir() if path.is_file()]
        for name in {*names, CONFIG, WEIGHTS} - {MANIFEST, checkpoint.PROGRESS}:
            if not (self.path / name).is_symlink():
                (self.path / name).unlink(missing_ok=True)  # a copy of the run made files of its links
                (self.path / name).symlink_to(last / name)

    def add_session(self, config: TrainConfig, world: World, strategy: str, peak: float) -> None:
        path = self.path / ENVIRONMENT
        sessions = json.loads(path.read_text()) if path.is_file() else []
        sessions.append(
            {
                "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                "command": sys.argv,
                "config": to_dict(config),
                "versions": {name: version(name) for name in ("keysift", "torch", "numpy", "tokenizers")},
                "python": platform.python_version(),
                "machine": f"{platform.system()}, {provenance.cpu()}, {os.cpu_count()} cores",
                "commit": provenance.commit(),
                "device": torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "cpu",
                "threads": torch.get_num_threads(),
                "processes": world.size,
                "strategy": strategy,
                "peak_flops": peak,
            }
        )
        write_json(path, sessions)


def write_json(path: Path, value: Any) -> None:
    write_whole(path, json.dumps(value, indent=2) + "\n")
