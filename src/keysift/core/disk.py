"""Atomic, durable writes: a file or folder appears under its name only when all of it is on disk."""

import ctypes
import errno
import glob
import json
import os
import re
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_OLD = ".old"
# Process id and a random word at the end of a temporary name. The word has no dash, so that a file of host "train-7"
# is not taken for one of process 7 on host "train".
_OWNER = re.compile(r"([0-9]+)-[a-z0-9_]+(\.old)?")
_UNFINISHED = re.compile(r"\.writing-.+-[0-9]+-[0-9a-f]{8}")


def sync(path: Path) -> None:
    """fsync a file or a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(path: Path, text: str) -> None:
    """Write a file atomically and remove leftovers of killed writers. If two processes write at once, the last wins."""
    prefix = _temporary_prefix("")
    for leftover in _abandoned(path.parent, prefix):
        with suppress(OSError):  # another user's, in a folder where only owners may remove
            leftover.unlink()
    fresh = path.parent / f"{prefix}{os.getpid()}-{secrets.token_hex(4)}"
    try:
        with fresh.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def is_leftover(path: Path) -> bool:
    """Whether a file is what `write_atomic` leaves when it is killed."""
    return _UNFINISHED.fullmatch(path.name) is not None and path.is_file()


@contextmanager
def atomic_folder(target: Path, working: Path | None = None, *, replace: bool = False) -> Iterator[Path]:
    """A temporary folder that is renamed to `target` when the block ends and all files are on disk.

    If the block fails, the folder is removed. `target` must not exist or must be an empty folder, unless `replace` is
    set. `working` names the temporary folder, for several processes that must agree on it. By default a new one is
    made beside `target`, and leftovers of killed writers are removed.
    """
    if working is None:
        prefix = _temporary_prefix(f".{target.name}")
        _remove_leftovers(target, prefix)
        fresh = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=target.parent))
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
        if replace and target.exists():
            _swap(fresh, target)
        else:
            fresh.rename(target)
        sync(target.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def exchange(left: Path, right: Path) -> bool:
    """Exchange two names atomically; returns False if the system does not support it."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(left), os.fsencode(right)
    if sys.platform == "linux" and hasattr(libc, "renameat2"):
        here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
        done = libc.renameat2(here, names[0], here, names[1], swap)
    elif sys.platform == "darwin" and hasattr(libc, "renamex_np"):
        done = libc.renamex_np(*names, 2)  # RENAME_SWAP
    else:
        return False
    code = ctypes.get_errno()
    if done == 0:
        return True
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):  # not supported by the file system, e.g. NFS
        return False
    raise OSError(code, os.strerror(code), str(right))


def _swap(fresh: Path, target: Path) -> None:
    """Exchange `fresh` and `target`."""
    if exchange(fresh, target):
        return
    # Without atomic exchange, the name is briefly missing; after a crash the next writer restores it.
    old = fresh.with_name(f"{fresh.name}{_OLD}")
    target.rename(old)
    try:
        fresh.rename(target)
    except BaseException:
        old.rename(target)
        raise
    old.rename(fresh)


def _remove_leftovers(target: Path, prefix: str) -> None:
    """Remove leftovers of killed writers, or restore `target` if a writer was killed after moving it away."""
    for leftover in _abandoned(target.parent, prefix):
        if leftover.name.endswith(_OLD) and not target.exists():
            with suppress(OSError):
                leftover.rename(target)
        else:
            shutil.rmtree(leftover, ignore_errors=True)


def _temporary_prefix(name: str) -> str:
    """Prefix of temporary names on this machine; the process id follows."""
    return f"{name}.writing-{socket.gethostname()}-"


def _abandoned(folder: Path, prefix: str) -> list[Path]:
    """Temporary files and folders whose writer no longer runs."""
    candidates = [
        (path, _OWNER.fullmatch(path.name.removeprefix(prefix))) for path in folder.glob(f"{glob.escape(prefix)}*")
    ]
    return [path for path, owner in candidates if owner is not None and not _alive(owner[1])]


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it runs as another user
    return True


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically."""
    write_atomic(path, json.dumps(value, indent=2) + "\n")
