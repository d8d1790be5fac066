"""metrics.jsonl: one line a step, each step once, whatever happened between. Free of torch: lists of runs read it."""

import importlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from keysift.core.disk import write_whole
from keysift.core.errors import UnsupportedError
from keysift.train.config import Sink
from keysift.train.layout import METRICS

_TAIL = 2**16  # bytes; a line with the heads of a large model is longer, and then the one before it will do


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a metrics file; one that a crash cut short ends it."""
    if not path.is_file():
        return
    with path.open() as file:
        for line in file:
            try:
                yield json.loads(line)
            except ValueError:
                return


def last(path: Path) -> dict[str, Any]:
    """The newest whole line, without reading the file; nothing if there is none yet."""
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL))
        for line in reversed(file.read().splitlines()):
            try:
                found: dict[str, Any] = json.loads(line)
            except ValueError:
                continue
            return found
    return {}


def cut(path: Path, step: int) -> None:
    """Keep what happened up to `step`: a resumed run writes the rest again."""
    write_whole(path, "".join(json.dumps(line) + "\n" for line in read(path) if line["step"] <= step))


class Writer:
    """Appends lines and passes them on to the sinks."""

    def __init__(self, folder: Path, sinks: list["Log"]) -> None:
        self._sinks = sinks
        # Unbuffered: when the disk is full, nothing may be left to be written at the end.
        self._file = (folder / METRICS).open("ab", buffering=0)

    def write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line).encode() + b"\n")
        numbers = {key: value for key, value in line.items() if isinstance(value, int | float)}
        for sink in self._sinks:
            sink.log(numbers, step=line["step"])

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
        for sink in self._sinks:
            sink.finish()


class Log(Protocol):
    def log(self, numbers: dict[str, Any], step: int) -> Any: ...
    def finish(self) -> Any: ...


class _Board:
    def __init__(self, folder: Path) -> None:
        self._writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(folder / "tensorboard"))

    def log(self, numbers: dict[str, Any], step: int) -> None:
        for name, number in numbers.items():
            self._writer.add_scalar(name, number, step)

    def finish(self) -> None:
        self._writer.close()


def open_sink(sink: Sink, folder: Path, settings: Mapping[str, Any]) -> Log:
    try:
        if sink == "tensorboard":
            return _Board(folder)
        module = importlib.import_module(sink)
    except ImportError as error:
        raise UnsupportedError(
            f"{sink} is not installed ({error}); pip install 'keysift[{sink}]', or drop --track"
        ) from error
    try:
        module.init(project="keysift", name=folder.name, config=dict(settings))
    except Exception as error:  # no network, no login, no disk: each tracker fails in its own classes
        raise UnsupportedError(f"{sink} does not start ({error}); set it up, or drop --track") from error
    log: Log = module
    return log
