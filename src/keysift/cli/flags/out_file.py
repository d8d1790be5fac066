"""Check, before any work, that the file of `--out` can be written."""

import os
from pathlib import Path

from keysift.core.errors import DataError


def make_folder_of(out: Path, flag: str = "--out") -> None:
    """Make the folder of a file to write. Raises DataError if the file cannot be written there."""
    remedy = f"name a file in another folder with {flag}"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{out} cannot be written ({error}); {remedy}") from error
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise DataError(f"{out} cannot be written, because {out.parent.resolve()} is read-only; {remedy}")
