"""One bar for work that says what it does and how far it is."""

from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from keysift.core.shown import Door, Words


class Bar:
    """On a terminal only, and gone when the work is done."""

    def __init__(self, *, show: bool = True) -> None:
        console = Door(stderr=True)
        columns = (Words("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bars = Progress(*columns, console=console, transient=True, disable=not (show and console.is_terminal))
        self._tasks: dict[str, int] = {}

    def __enter__(self) -> "Bar":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bars.stop()

    def update(self, what: str, done: int, total: int) -> None:
        task = self._tasks.get(what)
        if task is None:
            task = self._tasks[what] = self._bars.add_task(what, total=total)
        self._bars.update(task, completed=done, total=total)  # type: ignore[arg-type]
