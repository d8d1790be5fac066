"""The run directory: all files of a run.

train.json          manifest: the resolved config, the hash of the token stream, the size of the model
environment.json    one entry per session: machine, versions, commit, number of processes
metrics.jsonl       one line per step
samples/, heads/    text samples and head statistics at each checkpoint
evals/              records of keysift eval, one JSON file per measurement
checkpoints/        see checkpoint.py
config.json, ...    links to the model of the newest checkpoint, so that keysift.load reads the run directory
diagnosis.json      written if a run stopped at a non-finite value
"""

import fcntl
import filecmp
import os
import shutil
from pathlib import Path
from typing import Any

from keysift.core import safe_json
from keysift.core.disk import is_leftover, write_json
from keysift.core.errors import DataError
from keysift.models.model_type import CONFIG, WEIGHTS, import_advice
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
    checkpoint_name,
    checkpoint_steps,
    is_run_directory,
)


class Run:
    """A run directory that is about to be created, resumed or read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / CHECKPOINTS
        self._lock: Any = None

    def claim(self) -> None:
        """Create the folders of a new run. Refuses a directory that holds other files, so that none are overwritten."""
        if is_run_directory(self.path):
            raise DataError(
                f"{self.path} already holds a run; resume it with keysift train --resume {self.path}, or choose "
                f"another --out"
            )
        try:
            foreign = [path.name for path in self.path.iterdir() if not _unused(path)] if self.path.exists() else []
            if foreign:
                raise DataError(
                    f"{self.path} already holds {min(foreign)}; a run needs an empty folder, choose another --out"
                )
            for folder in (self.path, self.path / SAMPLES, self.path / HEADS, self.checkpoints):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{self.path} cannot be written ({error}); choose another --out") from error

    def read_train_json(self) -> Any:
        """Content of train.json."""
        file = self.path / TRAIN
        if not is_run_directory(self.path):
            remedy = import_advice(self.path) or "start one with --out"
            raise DataError(f"{self.path} holds no run: {TRAIN} is missing; {remedy}")
        try:
            return safe_json.load(file)
        except ValueError as error:
            raise DataError(f"{file} is not JSON ({error}); start a new run with --out") from error

    def lock(self) -> None:
        """Let only one process train in a directory. The system releases the lock of a killed process."""
        try:
            # Not blocking: opening a pipe would wait for its reader.
            self._lock = os.fdopen(os.open(self.path / LOCK, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o666), "w")
        except OSError as error:
            raise DataError(f"{self.path / LOCK} cannot be opened ({error}); remove it") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.unlock()
            raise DataError(f"another process is training in {self.path}; wait for it or stop it") from error

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def recover(self) -> None:
        """Verify the newest checkpoint, and repair links and leftovers after a crash or a removed checkpoint."""
        checkpoint.remove_leftovers(self.checkpoints)
        steps = checkpoint_steps(self.checkpoints)
        if steps:
            path = self.checkpoints / checkpoint_name(steps[-1])
            checkpoint.verify(path)
            self._restore_links(path)
            checkpoint.update_last_link(self.checkpoints, path.name)
            self.link_model()

    def link_model(self) -> None:
        """Link the model files into the run directory. The links go through `last`, so they never change.

        The weights come last: after a crash, a directory that has them has everything that `load` reads.
        """
        last = Path(CHECKPOINTS) / LAST
        names = [path.name for path in (self.path / last).iterdir() if path.is_file()]
        names = sorted({*names, CONFIG} - {MANIFEST, checkpoint.PROGRESS, WEIGHTS})
        for name in (*names, WEIGHTS):
            link = self.path / name
            if not link.is_symlink() and not link.exists():
                link.symlink_to(last / name)

    def _restore_links(self, newest: Path) -> None:
        """Remove copies of links. Copying a run by following links turns links into files; those that equal the newest
        checkpoint are removed, and any other file in the place of a link is refused."""
        last = self.checkpoints / LAST
        if last.is_dir() and not last.is_symlink():
            if not _same(last / MANIFEST, newest / MANIFEST):
                raise DataError(f"{last} is a folder that does not belong to this run; move it away to resume")
            shutil.rmtree(last)
        for name in (path.name for path in newest.iterdir() if path.is_file()):
            file = self.path / name
            if file.is_file() and not file.is_symlink():
                if not _same(file, newest / name):
                    raise DataError(f"{file} is a file that does not belong to this run; move it away to resume")
                file.unlink()

    def sessions(self) -> list[dict[str, Any]]:
        path = self.path / ENVIRONMENT
        if not path.is_file():
            return []
        try:
            sessions = safe_json.load(path)
        except ValueError as error:
            raise DataError(f"{path} is not JSON ({error}); move it away to resume the run") from error
        if not isinstance(sessions, list) or not all(isinstance(session, dict) for session in sessions):
            raise DataError(f"{path} is not a list of sessions; move it away to resume the run")
        return sessions

    def add_session(self, session: dict[str, Any]) -> None:
        write_json(self.path / ENVIRONMENT, [*self.sessions(), session])

    def end_session(self, ending: str) -> None:
        """Record how the newest session ended."""
        *before, newest = self.sessions()
        write_json(self.path / ENVIRONMENT, [*before, {**newest, "ended": ending}])


def _unused(path: Path) -> bool:
    """Whether a refused or killed start left this path: an empty folder, the lock, a temporary file."""
    if path.name in (SAMPLES, HEADS, CHECKPOINTS):
        return path.is_dir() and not path.is_symlink() and not any(path.iterdir())
    return (path.name == LOCK and path.is_file()) or is_leftover(path)


def _same(left: Path, right: Path) -> bool:
    return left.is_file() and filecmp.cmp(left, right, shallow=False)
