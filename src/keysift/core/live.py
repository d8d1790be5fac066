"""How long work shows itself: bars on a terminal, a plain line now and then elsewhere. Written to stderr."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.progress import Progress, ProgressColumn

from keysift.core.shown import Door, shown_text


class Live:
    """`bars` is there on a terminal only; where it is None, `now_and_then` speaks instead."""

    def __init__(self, *columns: ProgressColumn, show: bool, every: float = 5.0, transient: bool = False) -> None:
        console = Door(stderr=True)
        self.show = show
        self.bars = Progress(*columns, console=console, transient=transient) if show and console.is_terminal else None
        self._every = every
        self._told = time.monotonic()

    def __enter__(self) -> Self:
        if self.bars is not None:
            self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bars is not None:
            self.bars.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        try:
            if self.bars is not None:
                self.bars.console.print(text, soft_wrap=True)
            elif self.show:
                sys.stderr.write(shown_text(text) + "\n")
                sys.stderr.flush()
        except OSError:
            self.show = False  # the terminal or the pipe is gone; the work is not

    def now_and_then(self, text: str, *, at_once: bool = False) -> None:
        """The same news as the bars, for those who do not see them."""
        if self.show and self.bars is None and (at_once or time.monotonic() - self._told >= self._every):
            self._told = time.monotonic()
            self.say(text)
