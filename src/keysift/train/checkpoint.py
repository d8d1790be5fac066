"""Checkpoints: whole or not there at all, and known by their hashes.

checkpoints/step-00000100/   config.json, model.safetensors and the tokenizer: loads anywhere with keysift.load
    state/                   everything training needs, in the shards of torch's distributed checkpoint
    progress.json            step and what else is not a tensor
    manifest.json            size and sha256 of every file above; a checkpoint without it does not exist
checkpoints/last             a link to the newest

All is written to a folder beside, brought to disk and then renamed.
"""

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from keysift.core.disk import sync
from keysift.core.errors import DataError, TrainingError
from keysift.train.distributed import World
from keysift.train.layout import MANIFEST, name_of, steps

PROGRESS, STATE, LAST = "progress.json", "state", "last"
_FAILURES = (OSError, CheckpointException, SafetensorError, RuntimeError)


def save(
    folder: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    progress: Mapping[str, Any],
    write_model: Callable[[Path], None],
    world: World,
) -> Path:
    """Every process calls this; `write_model` fills the loadable directory and is called by the first one alone."""
    target, fresh = folder / name_of(step), folder / f".{name_of(step)}.writing"
    failure = ""
    try:
        if world.first:
            folder.mkdir(exist_ok=True)
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir()
    except OSError as error:
        failure = str(error)
    _agree(failure, folder, step, world)
    try:
        _write_state(fresh / STATE, tensors, world)
        if world.first:
            write_model(fresh)
            (fresh / PROGRESS).write_text(json.dumps({"step": step, **progress}, indent=1) + "\n")
            (fresh / MANIFEST).write_text(json.dumps(_hashes(fresh), indent=1) + "\n")
            for path in [*fresh.rglob("*"), fresh]:
                sync(path)
            fresh.rename(target)
            sync(folder)
            point(folder, target.name)
    except _FAILURES as error:
        failure = _reason(error)
        if world.first:
            shutil.rmtree(fresh, ignore_errors=True)
    _agree(failure, folder, step, world)
    return target


def point(folder: Path, name: str) -> None:
    """Make `last` lead to a checkpoint, in one step."""
    if (folder / LAST).is_dir() and not (folder / LAST).is_symlink():
        shutil.rmtree(folder / LAST)  # a copy of the run made a folder of the link
    link = folder / f".{LAST}"
    link.unlink(missing_ok=True)
    link.symlink_to(name)
    link.replace(folder / LAST)


def verify(path: Path) -> None:
    """Refuses a checkpoint of which any file is missing or changed."""
    try:
        wanted = json.loads((path / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} has no readable {MANIFEST} ({error}); {_instead(path)}") from error
    for name, (size, digest) in wanted.items():
        file = path / name
        if not file.is_file():
            raise DataError(f"{file} is missing; {_instead(path)}")
        if file.stat().st_size != size or _sha256(file) != digest:
            raise DataError(f"{file} is corrupt: it does not match its sha256; {_instead(path)}")


def load(path: Path, tensors: Mapping[str, Tensor], world: World) -> dict[str, Any]:
    """Fill `tensors`, sharded as they are now, and return the progress. The checkpoint was verified before."""
    wanted: dict[str, Any] = dict(tensors)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state_dict_loader.load(wanted, checkpoint_id=path / STATE, no_dist=world.size == 1)
    found: dict[str, Any] = json.loads((path / PROGRESS).read_text())
    return found


def stored_names(path: Path) -> set[str]:
    return set(FileSystemReader(path / STATE).read_metadata().state_dict_metadata)


def retain(folder: Path, *, last: int, every: int, best: int | None) -> None:
    """Remove what nobody asked to keep."""
    known = steps(folder)
    for step in known[:-last]:
        if step != best and not (every and step % every == 0):
            path = folder / name_of(step)
            # First the manifest: a removal that was cut short leaves no half checkpoint that looks whole.
            (path / MANIFEST).unlink()
            shutil.rmtree(path, ignore_errors=True)


def tidy(folder: Path) -> None:
    """Remove what killed processes left."""
    for path in folder.glob("*"):
        unfinished = path.name.startswith("step-") and not (path / MANIFEST).exists()
        if path.is_dir() and not path.is_symlink() and (path.name.startswith(".") or unfinished):
            shutil.rmtree(path, ignore_errors=True)


def _write_state(path: Path, tensors: Mapping[str, Tensor], world: World) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        writer = FileSystemWriter(path, single_file_per_rank=True, sync_files=True, thread_count=1)
        state_dict_saver.save(dict(tensors), storage_writer=writer, no_dist=world.size == 1)


def _agree(failure: str, folder: Path, step: int, world: World) -> None:
    """All stop if one failed, so that nobody waits for ever."""
    (failed,) = world.sum(float(bool(failure)))
    if failed:
        known = steps(folder)
        before = f"{name_of(known[-1])} is whole" if known else "no checkpoint was written yet"
        raise TrainingError(
            f"saving step {step} in {folder} failed ({failure or 'in another process'}); {before}; "
            f"make room or make it writable, then resume"
        )


def _reason(error: BaseException) -> str:
    if isinstance(error, CheckpointException):
        inner = next(iter(error.failures.values()))
        return str(inner[0])
    return str(error)


def _instead(path: Path) -> str:
    before = [step for step in steps(path.parent) if name_of(step) < path.name]
    if not before:
        return "no older checkpoint is there; start the run anew"
    return f"remove the folder {path.name} to go on from {name_of(before[-1])}"


def _hashes(folder: Path) -> dict[str, tuple[int, str]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_size, _sha256(path)) for path in files}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
