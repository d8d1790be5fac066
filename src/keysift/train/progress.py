"""How a run is doing."""

import time
from collections.abc import Mapping
from typing import Any

from rich.progress import BarColumn

from keysift.core.live import Live
from keysift.core.shown import Words


class Display:
    """Of one session: it ends after `steps`, after `seconds`, or with whichever comes first."""

    def __init__(self, steps: int | None, seconds: float | None, *, show: bool) -> None:
        self._steps, self._seconds = steps, seconds
        self._began = time.monotonic()
        self._first: int | None = None
        columns = (Words("step {task.fields[step]}"), BarColumn(), Words("{task.description}"))
        self.live = Live(*columns, show=show)
        if self.live.bars is not None:
            self._task = self.live.bars.add_task("starting", total=1.0, step=0)

    def step(self, line: Mapping[str, Any]) -> None:
        """Shows a line of the metrics."""
        now, step = time.monotonic(), line["step"]
        self._first = step if self._first is None else self._first
        done = self._done(step, now)
        gone = now - self._began
        left = gone * (1 - done) / done if done > 0 else 0.0
        right = f"accuracy {line['accuracy']:.1%}  " if "accuracy" in line else ""
        text = f"loss {line['loss']:.4f}  {right}{line['tokens_per_second']:,.0f} tokens/s  {clock(left)} left"
        if self.live.bars is not None:
            self.live.bars.update(self._task, completed=done, description=text, step=step)
        self.live.now_and_then(f"step {step}  {text}", at_once=self._first == step)

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
