"""Metrics for trackio, wandb and tensorboard. A tracker that fails later is dropped with a warning."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from keysift.core.errors import UnsupportedError
from keysift.train.config import Tracker


class Log(Protocol):
    def log(self, numbers: dict[str, Any], step: int) -> Any: ...
    def finish(self) -> Any: ...


class Trackers:
    def __init__(self, logs: Mapping[str, Log], warn: Callable[[str], None]) -> None:
        self._logs = dict(logs)
        self._warn = warn

    def log(self, line: Mapping[str, Any]) -> None:
        numbers = {key: value for key, value in line.items() if isinstance(value, int | float)}
        self._each(lambda log: log.log(numbers, step=line["step"]))

    def finish(self) -> None:
        self._each(lambda log: log.finish())

    def _each(self, call: Callable[[Log], Any]) -> None:
        for name, log in list(self._logs.items()):
            try:
                call(log)
            except Exception as error:  # a tracker fails in classes of its own, and must not cost a step
                del self._logs[name]
                self._warn(f"warning: {name} failed ({error}); it gets no more metrics, metrics.jsonl has them all")


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        self._writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(folder / "tensorboard"))

    def log(self, numbers: dict[str, Any], step: int) -> None:
        for name, number in numbers.items():
            self._writer.add_scalar(name, number, step)

    def finish(self) -> None:
        self._writer.close()


def open_tracker(tracker: Tracker, folder: Path, settings: Mapping[str, Any]) -> Log:
    try:
        if tracker == "tensorboard":
            return _TensorBoard(folder)
        module = importlib.import_module(tracker)
    except ImportError as error:
        raise UnsupportedError(
            f"{tracker} is not installed ({error}); pip install 'keysift[{tracker}]', or drop --track"
        ) from error
    try:
        module.init(project="keysift", name=folder.name, config=dict(settings))
    except Exception as error:  # no network, no login, no disk: each tracker fails in its own classes
        raise UnsupportedError(f"{tracker} does not start ({error}); set it up, or drop --track") from error
    log: Log = module
    return log
