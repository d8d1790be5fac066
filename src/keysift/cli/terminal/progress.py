"""Progress of a measurement: bars on a terminal, a line on stderr every few seconds elsewhere."""

from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

from keysift.core.progress import ProgressDisplay
from keysift.core.terminal import SafeTextColumn


class ProgressBar:
    """One bar for each task, added at its first update. The bars are removed from the terminal at the end."""

    def __init__(self) -> None:
        columns = (SafeTextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._live = ProgressDisplay(*columns, show=True, transient=True)
        self._tasks: dict[str, int] = {}

    def __enter__(self) -> "ProgressBar":
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, traceback)

    def update(self, task: str, done: int, total: int, detail: str = "") -> None:
        """Set the progress of a task. `detail` describes the newest step."""
        bars = self._live.bars
        if bars is not None:
            if task not in self._tasks:
                self._tasks[task] = bars.add_task(task, total=total)
            text = f"{task}, {detail}" if detail else task
            bars.update(self._tasks[task], completed=done, total=total, description=text)  # type: ignore[arg-type]
        self._live.print_periodically(f"{task}: {done} of {total}{f', {detail}' if detail else ''}")
