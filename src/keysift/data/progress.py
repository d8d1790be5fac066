"""How far a build is: a bar on a terminal, a plain line now and then elsewhere. Written to stderr."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn


class Meter:
    def __init__(self, title: str, total: int | None, *, show: bool = True, every: float = 5.0) -> None:
        self.title = title
        self.total = total
        self.done = 0
        self._show = show
        self._every = every
        self._began = self._told = time.monotonic()
        self._bar: Progress | None = None
        console = Console(stderr=True)
        if show and console.is_terminal:
            columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
            self._bar = Progress(TextColumn("{task.description}"), *columns, console=console, transient=True)
            self._task = self._bar.add_task(title, total=total)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, size: int) -> None:
        self.done += size
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done)
        elif self._show and time.monotonic() - self._told >= self._every:
            self._told = time.monotonic()
            share = f" of {self.total / 1e6:.1f}" if self.total else ""
            rate = self.done / 1e6 / (self._told - self._began)
            sys.stderr.write(f"{self.title}: {self.done / 1e6:.1f}{share} MB, {rate:.1f} MB/s\n")
            sys.stderr.flush()
