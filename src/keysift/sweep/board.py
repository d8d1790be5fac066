"""Progress of a sweep: one bar for each active run and one for all runs."""

from typing import Any

from rich.progress import BarColumn, TaskID

from keysift.core.progress import ProgressDisplay
from keysift.core.terminal import SafeTextColumn


class Board:
    """Bars on a terminal; a line every few seconds elsewhere."""

    def __init__(self, runs: int, steps: int, *, show: bool) -> None:
        self._steps = steps
        self._runs, self._ended = runs, 0
        columns = (SafeTextColumn("{task.description}"), BarColumn(), SafeTextColumn("{task.fields[status]}"))
        self.live = ProgressDisplay(*columns, show=show)
        self._tasks: dict[str, TaskID] = {}
        self._status: dict[str, str] = {}
        if self.live.bars is not None:
            self._all = self.live.bars.add_task("all runs", total=float(runs), status=f"0/{runs}")

    def update(self, name: str, line: dict[str, Any]) -> None:
        """Show the newest line of a run's metrics."""
        step = line.get("step", 0)
        status = f"step {step}/{self._steps}  loss {line['loss']:.4f}" if line else "starting"
        self._status[name] = status
        if self.live.bars is not None:
            if name not in self._tasks:
                self._tasks[name] = self.live.bars.add_task(name, total=float(self._steps), status=status)
            self.live.bars.update(self._tasks[name], completed=step, status=status)
        self.live.print_periodically("; ".join(f"{run}: {status}" for run, status in self._status.items()))

    def end(self, name: str, text: str) -> None:
        """Remove the bar of a run and print how it ended."""
        self._ended += 1
        self._status.pop(name, None)
        if self.live.bars is not None:
            if name in self._tasks:
                self.live.bars.remove_task(self._tasks.pop(name))
            self.live.bars.update(self._all, completed=self._ended, status=f"{self._ended}/{self._runs}")
        self.live.print(f"{self._ended}/{self._runs}  {name}: {text}")
