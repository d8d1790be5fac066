"""Files that survive a crash: brought to disk before they count, and whole or not there at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, text: str) -> None:
    """Whole or not at all."""
    fresh = path.with_name(f".{path.name}")
    with fresh.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


@contextmanager
def whole_folder(target: Path, working: Path | None = None) -> Iterator[Path]:
    """A folder to fill, which takes the name `target` once the block has ended and everything is on disk.

    If the block fails the folder is removed. `target` must not exist yet, or be an empty folder. `working` is the name
    of the folder meanwhile, for writers that must agree on it; left out, it is a new one beside `target`.
    """
    if working is None:
        fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}.writing-", dir=target.parent))
        fresh.chmod(0o755)
    else:
        fresh = working
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
    try:
        yield fresh
        for path in fresh.rglob("*"):
            if not path.is_symlink():
                sync(path)
        sync(fresh)
        fresh.rename(target)
        sync(target.parent)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
