"""Progress of building a corpus."""

import time

from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

from keysift.core.progress import ProgressDisplay
from keysift.core.terminal import SafeTextColumn


class Meter:
    """Shows bytes read, of the total if it is known."""

    def __init__(self, title: str, total: int | None, *, show: bool = True, every: float = 5.0) -> None:
        self.title = title
        self.total = total
        self.done = self.read = 0
        self._began = time.monotonic()
        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self.live = ProgressDisplay(
            SafeTextColumn("{task.description}"), *columns, show=show, every=every, transient=True
        )
        if self.live.bars is not None:
            self._task = self.live.bars.add_task(title, total=total)

    def advance(self, size: int, position: int | None = None) -> None:
        """Count `size` bytes of text; shows `position` in the (possibly compressed) source if it is known."""
        self.read += size
        self.done = self.read if position is None else position
        if self.live.bars is not None:
            self.live.bars.update(self._task, completed=self.done)
            return
        share = f" of {self.total / 1e6:.1f}" if self.total else ""
        rate = self.done / 1e6 / max(time.monotonic() - self._began, 1e-9)
        self.live.print_periodically(f"{self.title}: {self.done / 1e6:.1f}{share} MB, {rate:.1f} MB/s")
