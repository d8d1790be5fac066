"""Checkpoints: whole or not there at all, and known by their hashes. Free of torch.

checkpoints/step-00000100/   config.json, model.safetensors and the tokenizer: loads anywhere with keysift.load
    state/                   everything training needs: see train/shards.py
    progress.json            step and what else is not a tensor
    manifest.json            size and sha256 of every file above; a checkpoint without it does not exist
checkpoints/last             a link to the newest

All is written to a folder beside, fsynced and then renamed.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from keysift.core import jsons
from keysift.core.config import config, from_dict, to_dict
from keysift.core.disk import whole_folder
from keysift.core.errors import DataError
from keysift.runs.layout import LAST, MANIFEST, name_of, steps

PROGRESS, STATE = "progress.json", "state"
_LEFT = re.compile(r"\.step-[0-9]{8,}\.(writing|removing)")


def working(folder: Path, step: int) -> Path:
    """Where a checkpoint is written until it is complete; the same for every process."""
    return folder / f".{name_of(step)}.writing"


@config
class Progress:
    """What of a run is not a tensor."""

    step: int
    best: float | None
    """Lowest validation loss so far."""
    best_step: int | None
    seconds: float
    """Of training, over all sessions."""
    processes: int
    stage: int = 0
    """Of a curriculum."""
    mastery: float = 0.0
    """Running accuracy in this stage."""


@contextmanager
def written(folder: Path, progress: Progress) -> Iterator[Path]:
    """A folder to fill with state and model; after the block it is the newest checkpoint, hashed and on disk."""
    folder.mkdir(exist_ok=True)
    name = name_of(progress.step)
    with whole_folder(folder / name, working(folder, progress.step)) as fresh:
        yield fresh
        (fresh / PROGRESS).write_text(json.dumps(to_dict(progress), indent=1) + "\n")
        (fresh / MANIFEST).write_text(json.dumps(_hashes(fresh), indent=1) + "\n")
    point(folder, name)


def point(folder: Path, name: str) -> None:
    """Make `last` lead to a checkpoint, in one step."""
    link = folder / f".{LAST}"
    link.unlink(missing_ok=True)
    link.symlink_to(name)
    link.replace(folder / LAST)


def verify(path: Path) -> None:
    """Refuses a checkpoint of which any file is missing or changed."""
    for name, (size, digest) in _manifest(path).items():
        file = path / name
        if not file.is_file():
            raise DataError(f"{file} is missing; {_instead(path)}")
        if file.stat().st_size != size or _sha256(file) != digest:
            raise DataError(f"{file} is corrupt: it does not match its sha256; {_instead(path)}")


def _manifest(path: Path) -> dict[str, tuple[int, str]]:
    try:
        found = jsons.loads((path / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} has no readable {MANIFEST} ({error}); {_instead(path)}") from error
    if not isinstance(found, dict) or not all(_is_entry(name, entry) for name, entry in found.items()):
        raise DataError(f"{path} has no readable {MANIFEST} (it does not list files); {_instead(path)}")
    return found


def _is_entry(name: str, entry: Any) -> bool:
    inside = not Path(name).is_absolute() and ".." not in Path(name).parts
    return inside and isinstance(entry, list) and [type(part) for part in entry] == [int, str]


def progress(path: Path) -> Progress:
    try:
        return from_dict(Progress, jsons.loads((path / PROGRESS).read_text()))
    except (OSError, ValueError) as error:
        raise DataError(f"{path / PROGRESS} does not say how far the run was ({error}); {_instead(path)}") from error


def retain(folder: Path, *, last: int, every: int, best: int | None) -> None:
    """Remove what nobody asked to keep."""
    known = steps(folder)
    for step in known[:-last]:
        if step != best and not (every and step % every == 0):
            # Renamed first: a removal that was cut short leaves no half checkpoint that looks whole.
            gone = folder / f".{name_of(step)}.removing"
            (folder / name_of(step)).rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


def tidy(folder: Path) -> None:
    """Remove what killed processes left, and nothing else."""
    for path in folder.glob(".step-*"):
        if _LEFT.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)


def _instead(path: Path) -> str:
    before = [step for step in steps(path.parent) if name_of(step) < path.name]
    if not before:
        return "there is no older checkpoint; start the run again"
    return f"remove the folder {path.name} to resume from {name_of(before[-1])}"


def _hashes(folder: Path) -> dict[str, tuple[int, str]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_size, _sha256(path)) for path in files}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
