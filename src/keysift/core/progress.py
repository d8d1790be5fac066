"""Progress of long work on stderr: bars on a terminal, occasional plain lines elsewhere."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.progress import Progress, ProgressColumn

from keysift.core.terminal import SafeConsole, escape_text


class ProgressDisplay:
    """`bars` is a rich progress display on a terminal and None elsewhere, where `print_periodically` replaces it."""

    def __init__(self, *columns: ProgressColumn, show: bool, every: float = 5.0, transient: bool = False) -> None:
        console = SafeConsole(stderr=True)
        self.show = show
        self.bars = Progress(*columns, console=console, transient=transient) if show and console.is_terminal else None
        self._every = every
        self._printed_at = time.monotonic()

    def __enter__(self) -> Self:
        if self.bars is not None:
            self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bars is not None:
            self.bars.stop()

    def print(self, text: str) -> None:
        """Print a permanent line, above the bars."""
        try:
            if self.bars is not None:
                self.bars.console.print(text, soft_wrap=True)
            elif self.show:
                sys.stderr.write(escape_text(text) + "\n")
                sys.stderr.flush()
        except OSError:
            self.show = False  # the terminal or the pipe is gone; the work continues

    def print_periodically(self, text: str, *, force: bool = False) -> None:
        """Print a line every few seconds if there are no bars; `force` prints it now."""
        if self.show and self.bars is None and (force or time.monotonic() - self._printed_at >= self._every):
            self._printed_at = time.monotonic()
            self.print(text)
