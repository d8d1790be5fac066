"""Read JSON from untrusted files: every problem is a ValueError."""

import json
from pathlib import Path
from typing import Any

from keysift.core.regular_file import read_bytes


def loads(text: str | bytes) -> Any:
    """Like json.loads, but JSON that is nested too deeply for Python raises ValueError as well."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def load(path: Path | str) -> Any:
    """Parse a regular file. Raises OSError if it cannot be read or is a pipe, ValueError if it is not JSON."""
    return loads(read_bytes(path))
