"""The run directory: everything a run was, in one folder.

train.json          the resolved config, the hash of the token stream, the size of the model
environment.json    one entry a session: machine, versions and commit, processes
metrics.jsonl       one line a step
samples/, heads/    what the model wrote, and what each head had learned, at each checkpoint
evals/              records of keysift eval, one JSON a measure
checkpoints/        see checkpoint.py
config.json, ...    links to the newest checkpoint's model, so the folder itself loads with keysift.load
diagnosis.json      why a run stopped, if its loss was not finite
"""

import fcntl
import filecmp
import json
import shutil
from pathlib import Path
from typing import Any

from keysift.core import jsons
from keysift.core.disk import is_unfinished, write_whole
from keysift.core.errors import DataError
from keysift.models.foreign import advice
from keysift.models.save import CONFIG
from keysift.models.tensor_files import WEIGHTS
from keysift.runs import checkpoint
from keysift.runs.layout import (
    CHECKPOINTS,
    ENVIRONMENT,
    HEADS,
    LAST,
    LOCK,
    MANIFEST,
    SAMPLES,
    TRAIN,
    holds_a_run,
    name_of,
    steps,
)


class Run:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / CHECKPOINTS
        self._lock: Any = None

    def claim(self) -> None:
        """Make room for a new run; refuses a folder that holds anything else, so that nothing of the user's is lost."""
        if holds_a_run(self.path):
            raise DataError(
                f"{self.path} already holds a run; resume it with keysift train --resume {self.path}, or choose "
                f"another --out"
            )
        try:
            foreign = [path.name for path in self.path.iterdir() if not _unused(path)] if self.path.exists() else []
            if foreign:
                raise DataError(
                    f"{self.path} already holds {min(foreign)}; a run needs a folder of its own, choose another --out"
                )
            for folder in (self.path, self.path / SAMPLES, self.path / HEADS, self.checkpoints):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{self.path} cannot be written ({error}); choose another --out") from error

    def told(self) -> Any:
        """What train.json says."""
        file = self.path / TRAIN
        if not holds_a_run(self.path):
            how = advice(self.path) or "start one with --out"
            raise DataError(f"{self.path} holds no run: {TRAIN} is missing; {how}")
        try:
            return jsons.loads(file.read_text())
        except ValueError as error:
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

    def recover(self) -> None:
        """Check the newest checkpoint against its hashes, and repair what a crash or a removed checkpoint left."""
        checkpoint.tidy(self.checkpoints)
        made = steps(self.checkpoints)
        if made:
            path = self.checkpoints / name_of(made[-1])
            checkpoint.verify(path)
            self._undo_copy(path)
            checkpoint.point(self.checkpoints, path.name)
            self.link_model()

    def link_model(self) -> None:
        """Let the folder itself be loaded. The names are links through `last`, so they never need to change."""
        last = Path(CHECKPOINTS) / LAST
        names = [path.name for path in (self.path / last).iterdir() if path.is_file()]
        for name in {*names, CONFIG, WEIGHTS} - {MANIFEST, checkpoint.PROGRESS}:
            link = self.path / name
            if not link.is_symlink() and not link.exists():
                link.symlink_to(last / name)

    def _undo_copy(self, newest: Path) -> None:
        """A copy that follows links makes files and a folder of them; those that equal the newest checkpoint go, and
        anything else that stands in the place of a link is refused."""
        last = self.checkpoints / LAST
        if last.is_dir() and not last.is_symlink():
            if not _same(last / MANIFEST, newest / MANIFEST):
                raise DataError(f"{last} is a folder that is not this run's; move it away to resume")
            shutil.rmtree(last)
        for name in (path.name for path in newest.iterdir() if path.is_file()):
            file = self.path / name
            if file.is_file() and not file.is_symlink():
                if not _same(file, newest / name):
                    raise DataError(f"{file} is a file that is not this run's; move it away to resume")
                file.unlink()

    def sessions(self) -> list[dict[str, Any]]:
        path = self.path / ENVIRONMENT
        if not path.is_file():
            return []
        try:
            found = jsons.loads(path.read_text())
        except ValueError as error:
            raise DataError(f"{path} is not JSON ({error}); move it away to resume the run") from error
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise DataError(f"{path} is not a list of sessions; move it away to resume the run")
        return found

    def add_session(self, session: dict[str, Any]) -> None:
        write_json(self.path / ENVIRONMENT, [*self.sessions(), session])

    def end_session(self, how: str) -> None:
        """Note in the newest session how it ended."""
        *before, newest = self.sessions()
        write_json(self.path / ENVIRONMENT, [*before, {**newest, "ended": how}])


def _unused(path: Path) -> bool:
    """What a start that was refused or killed leaves: empty folders, the lock, a file that was not yet renamed."""
    if path.name in (SAMPLES, HEADS, CHECKPOINTS):
        return path.is_dir() and not path.is_symlink() and not any(path.iterdir())
    return (path.name == LOCK and path.is_file()) or is_unfinished(path)


def _same(left: Path, right: Path) -> bool:
    return left.is_file() and filecmp.cmp(left, right, shallow=False)


def write_json(path: Path, value: Any) -> None:
    write_whole(path, json.dumps(value, indent=2) + "\n")
