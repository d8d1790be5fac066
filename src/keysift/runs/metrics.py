"""metrics.jsonl: one line per step, each step once, even after a crash and a resume. Free of torch."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keysift.core import safe_json
from keysift.core.disk import write_atomic
from keysift.runs.layout import METRICS

_TAIL = 2**16  # bytes; holds many lines


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a metrics file. Skips damaged lines and a last line that a crash cut short."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            values = _parse(line)
            if values is not None:
                yield values


def last(path: Path) -> dict[str, Any]:
    """The newest complete line, read from the end of the file; empty if there is none."""
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL))
        for line in reversed(file.read().splitlines()):
            values = _parse(line)
            if values is not None:
                return values
    return {}


def _parse(text: str | bytes) -> dict[str, Any] | None:
    try:
        values = safe_json.loads(text)
    except ValueError:
        return None
    if not isinstance(values, dict) or type(values.get("step")) is not int:
        return None
    return values


def truncate(path: Path, step: int) -> None:
    """Drop the lines after `step`: a resumed run writes them again."""
    write_atomic(path, "".join(json.dumps(line) + "\n" for line in read(path) if line["step"] <= step))


class Writer:
    """Appends lines to metrics.jsonl."""

    def __init__(self, folder: Path) -> None:
        # Unbuffered: on a full disk, a buffered line would fail only when the file is closed.
        self._file = (folder / METRICS).open("ab", buffering=0)

    def write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line).encode() + b"\n")

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
