"""How a run is doing: a live line on a terminal, a plain one now and then elsewhere. Written to stderr."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn


class Display:
    """Of one session: it ends after `steps`, after `seconds`, or with whichever comes first."""

    def __init__(self, steps: int | None, seconds: float | None, *, show: bool, every: float = 5.0) -> None:
        self._steps, self._seconds = steps, seconds
        self._began = self._told = time.monotonic()
        self._show = show
        self._every = every
        self._first: int | None = None
        self._bar: Progress | None = None
        console = Console(stderr=True)
        if show and console.is_terminal:
            columns = (TextColumn("step {task.fields[step]}"), BarColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=console)
            self._task = self._bar.add_task("starting", total=1.0, step=0)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        if not self._show:
            return
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def step(self, step: int, loss: float, tokens_per_second: float) -> None:
        if not self._show:
            return
        now = time.monotonic()
        self._first = step if self._first is None else self._first
        done = self._done(step, now)
        gone = now - self._began
        left = gone * (1 - done) / done if done > 0 else 0.0
        text = f"loss {loss:.4f}  {tokens_per_second:,.0f} tokens/s  {clock(left)} left"
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=text, step=step)
        elif now - self._told >= self._every or self._first == step:
            self._told = now
            self.say(f"step {step}  {text}")

    def _done(self, step: int, now: float) -> float:
        """The share of this session that is over, by steps or by time, whichever ends first."""
        assert self._first is not None
        shares = []
        if self._steps is not None:
            shares.append((step - self._first + 1) / max(1, self._steps - self._first + 1))
        if self._seconds is not None:
            shares.append((now - self._began) / self._seconds)
        return min(1.0, max(shares))


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
