"""Files that survive a crash: fsynced before they count, and whole or not there at all."""

import ctypes
import errno
import glob
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

_OLD = ".old"
# Process and a word of its own, at the end of a working name. The word has no dash, so that what a host "train-7" wrote
# is not taken for process 7 of a host "train".
_OWNER = re.compile(r"([0-9]+)-[a-z0-9_]+(\.old)?")
_UNFINISHED = re.compile(r"\.writing-.+-[0-9]+-[0-9a-f]{8}")


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, text: str) -> None:
    """Whole or not at all; of two who write it at once, the later one's. What killed writers left is removed."""
    prefix = _working("")
    for left in _abandoned(path.parent, prefix):
        with suppress(OSError):  # another user's, in a folder where only owners remove
            left.unlink()
    fresh = path.parent / f"{prefix}{os.getpid()}-{secrets.token_hex(4)}"
    try:
        with fresh.open("x") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def is_unfinished(path: Path) -> bool:
    """Whether it is what `write_whole` leaves when it is killed."""
    return _UNFINISHED.fullmatch(path.name) is not None and path.is_file()


@contextmanager
def whole_folder(target: Path, working: Path | None = None, *, replace: bool = False) -> Iterator[Path]:
    """A folder to fill, which takes the name `target` once the block has ended and everything is on disk.

    If the block fails the folder is removed. `target` must not exist yet, or be an empty folder, unless it is to be
    replaced. `working` is the name of the folder meanwhile, for writers that must agree on it; left out, it is a new
    one beside `target`, and what writers that were killed left there is removed.
    """
    if working is None:
        prefix = _working(f".{target.name}")
        _tidy(target, prefix)
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
    """Swap two names in one step, of which neither a reader nor a crash sees the half; False if the system cannot."""
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
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):  # the file system cannot, e.g. NFS
        return False
    raise OSError(code, os.strerror(code), str(right))


def _swap(fresh: Path, target: Path) -> None:
    """Put `fresh` where `target` is, and what was there where `fresh` was."""
    if exchange(fresh, target):
        return
    # The next best: for a moment nothing has the name, and a crash in it is mended by the next writer.
    old = fresh.with_name(f"{fresh.name}{_OLD}")
    target.rename(old)
    try:
        fresh.rename(target)
    except BaseException:
        old.rename(target)
        raise
    old.rename(fresh)


def _tidy(target: Path, prefix: str) -> None:
    """Remove what killed writers left; what one had just moved away from `target` goes back."""
    for left in _abandoned(target.parent, prefix):
        if left.name.endswith(_OLD) and not target.exists():
            with suppress(OSError):
                left.rename(target)
        else:
            shutil.rmtree(left, ignore_errors=True)


def _working(name: str) -> str:
    """How names begin that a writer on this machine uses meanwhile; its process follows."""
    return f"{name}.writing-{socket.gethostname()}-"


def _abandoned(folder: Path, prefix: str) -> list[Path]:
    """Working files and folders of which the writer is gone."""
    found = [
        (path, _OWNER.fullmatch(path.name.removeprefix(prefix))) for path in folder.glob(f"{glob.escape(prefix)}*")
    ]
    return [path for path, owner in found if owner is not None and not _alive(owner[1])]


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it lives, and belongs to someone else
    return True
