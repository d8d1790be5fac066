"""metrics.jsonl: one line a step, each step once, whatever happened between. Free of torch: lists of runs read it."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keysift.core import jsons
from keysift.core.disk import write_whole
from keysift.runs.layout import METRICS

_RENAMED = {"share_of_peak": "mfu", "rate": "lr"}  # names in files of earlier versions
_TAIL = 2**16  # bytes, many lines


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a metrics file. A line that is damaged, or that a crash cut short, is left out."""
    if not path.is_file():
        return
    with path.open(errors="replace") as file:
        for line in file:
            found = _line(line)
            if found is not None:
                yield found


def last(path: Path) -> dict[str, Any]:
    """The newest whole line, without reading the file; nothing if there is none yet."""
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL))
        for line in reversed(file.read().splitlines()):
            found = _line(line)
            if found is not None:
                return found
    return {}


def _line(text: str | bytes) -> dict[str, Any] | None:
    try:
        found = jsons.loads(text)
    except ValueError:
        return None
    if not isinstance(found, dict) or type(found.get("step")) is not int:
        return None
    for before, name in _RENAMED.items():
        if before in found:
            found[name] = found.pop(before)
    return found


def cut(path: Path, step: int) -> None:
    """Keep what happened up to `step`: a resumed run writes the rest again."""
    write_whole(path, "".join(json.dumps(line) + "\n" for line in read(path) if line["step"] <= step))


class Writer:
    """Appends lines."""

    def __init__(self, folder: Path) -> None:
        # Unbuffered: when the disk is full, nothing may be left to be written at the end.
        self._file = (folder / METRICS).open("ab", buffering=0)

    def write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line).encode() + b"\n")

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
