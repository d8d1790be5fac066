"""Read files that others wrote. Pipes and devices are refused: reading them would block or never end."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path | str) -> BinaryIO:
    """Open a regular file for reading bytes. Raises OSError for anything else, without waiting for a writer."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "expected a regular file, got a pipe or a device", str(path))


def read_bytes(path: Path | str) -> bytes:
    """Content of a regular file."""
    with open_regular(path) as file:
        return file.read()


def read_text(path: Path | str) -> str:
    """Content of a regular file as UTF-8, whatever the locale. Raises ValueError for other bytes."""
    return read_bytes(path).decode("utf-8")
