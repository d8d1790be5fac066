"""How far a build is."""

import time

from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

from keysift.core.live import Live
from keysift.core.shown import Words


class Meter:
    def __init__(self, title: str, total: int | None, *, show: bool = True, every: float = 5.0) -> None:
        self.title = title
        self.total = total
        self.done = self.read = 0
        self._began = time.monotonic()
        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self.live = Live(Words("{task.description}"), *columns, show=show, every=every, transient=True)
        if self.live.bars is not None:
            self._task = self.live.bars.add_task(title, total=total)

    def advance(self, size: int, position: int | None = None) -> None:
        """By so much text; what is shown is the position in the source, which may be compressed, if it is known."""
        self.read += size
        self.done = self.read if position is None else position
        if self.live.bars is not None:
            self.live.bars.update(self._task, completed=self.done)
            return
        share = f" of {self.total / 1e6:.1f}" if self.total else ""
        rate = self.done / 1e6 / max(time.monotonic() - self._began, 1e-9)
        self.live.now_and_then(f"{self.title}: {self.done / 1e6:.1f}{share} MB, {rate:.1f} MB/s")
