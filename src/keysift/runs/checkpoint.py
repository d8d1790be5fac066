"""Checkpoints: written atomically and verified by hashes. Does not import torch.

checkpoints/step-00000100/   config.json, model.safetensors and the tokenizer: a model that keysift.load reads
    state/                   training state, see train/checkpoint.py
    progress.json            step and other values that are not tensors
    manifest.json            size and sha256 of every file above; without it a checkpoint is incomplete
checkpoints/last             a link to the newest checkpoint

A checkpoint is written to a temporary folder beside it, fsynced and then renamed.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from keysift.core import safe_json
from keysift.core.config import config, from_dict, to_dict
from keysift.core.disk import atomic_folder
from keysift.core.errors import DataError
from keysift.runs.layout import LAST, MANIFEST, checkpoint_name, checkpoint_steps

PROGRESS, STATE = "progress.json", "state"
_LEFTOVER = re.compile(r"\.step-[0-9]{8,}\.(writing|removing)")


def working_folder(folder: Path, step: int) -> Path:
    """Temporary folder of a checkpoint; the same on every rank."""
    return folder / f".{checkpoint_name(step)}.writing"


@config
class Progress:
    """Training state that is not a tensor."""

    step: int
    best: float | None
    """Lowest validation loss so far."""
    best_step: int | None
    seconds: float
    """Training time over all sessions."""
    processes: int
    stage: int = 0
    """Stage of the curriculum."""
    mastery: float = 0.0
    """Running accuracy in this stage."""


@contextmanager
def new_checkpoint(folder: Path, progress: Progress) -> Iterator[Path]:
    """Yield a folder for the model and its state. On exit it is hashed, renamed and becomes the newest checkpoint."""
    folder.mkdir(exist_ok=True)
    name = checkpoint_name(progress.step)
    with atomic_folder(folder / name, working_folder(folder, progress.step)) as fresh:
        yield fresh
        (fresh / PROGRESS).write_text(json.dumps(to_dict(progress), indent=1) + "\n")
        (fresh / MANIFEST).write_text(json.dumps(_hashes(fresh), indent=1) + "\n")
    update_last_link(folder, name)


def update_last_link(folder: Path, name: str) -> None:
    """Point the link `last` to a checkpoint. The update is atomic."""
    link = folder / f".{LAST}"
    link.unlink(missing_ok=True)
    link.symlink_to(name)
    link.replace(folder / LAST)


def verify(path: Path) -> None:
    """Raise DataError if a file of the checkpoint is missing or changed."""
    for name, (size, digest) in _manifest(path).items():
        file = path / name
        if not file.is_file():
            raise DataError(f"{file} is missing; {_remedy(path)}")
        if file.stat().st_size != size or _sha256(file) != digest:
            raise DataError(f"{file} is corrupt: it does not match its sha256; {_remedy(path)}")


def _manifest(path: Path) -> dict[str, tuple[int, str]]:
    try:
        files = safe_json.load(path / MANIFEST)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} has no readable {MANIFEST} ({error}); {_remedy(path)}") from error
    if not isinstance(files, dict) or not all(_is_entry(name, entry) for name, entry in files.items()):
        raise DataError(
            f"{path} has no readable {MANIFEST} (not a mapping of file names to size and sha256); {_remedy(path)}"
        )
    return files


def _is_entry(name: str, entry: Any) -> bool:
    inside = not Path(name).is_absolute() and ".." not in Path(name).parts
    return inside and isinstance(entry, list) and [type(part) for part in entry] == [int, str]


def read_progress(path: Path) -> Progress:
    try:
        return from_dict(Progress, safe_json.load(path / PROGRESS))
    except (OSError, ValueError) as error:
        raise DataError(f"{path / PROGRESS} cannot be read ({error}); {_remedy(path)}") from error


def remove_old_checkpoints(folder: Path, *, last: int, every: int, best: int | None) -> None:
    """Remove all checkpoints but the `last` newest, those at multiples of `every` steps, and the one at step `best`."""
    for step in checkpoint_steps(folder)[:-last]:
        if step != best and not (every and step % every == 0):
            # Rename first: an interrupted removal then leaves no partial checkpoint under this name.
            removing = folder / f".{checkpoint_name(step)}.removing"
            (folder / checkpoint_name(step)).rename(removing)
            shutil.rmtree(removing, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove temporary folders that killed processes left."""
    for path in folder.glob(".step-*"):
        if _LEFTOVER.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)


def _remedy(path: Path) -> str:
    older = [step for step in checkpoint_steps(path.parent) if checkpoint_name(step) < path.name]
    if not older:
        return "there is no older checkpoint; start the run again"
    return f"remove the folder {path.name} to resume from {checkpoint_name(older[-1])}"


def _hashes(folder: Path) -> dict[str, tuple[int, str]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_size, _sha256(path)) for path in files}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
