"""One bar for work that says what it does and how far it is."""

from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from keysift.core.live import Live
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


class Steps:
    """How far a measurement is: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, total: int) -> None:
        self.live = Live(BarColumn(), Words("{task.description}"), show=True, transient=True)
        self._total, self._done = total, 0
        if self.live.bars is not None:
            self._task = self.live.bars.add_task("starting", total=float(total))

    def at(self, done: int) -> None:
        self._say(done, f"{done:,} of {self._total:,} tokens")

    def more(self, text: str) -> None:
        self._say(self._done + 1, text)

    def _say(self, done: int, text: str) -> None:
        self._done = done
        if self.live.bars is not None:
            self.live.bars.update(self._task, completed=done, description=text)
        self.live.now_and_then(f"{done}/{self._total}  {text}")

    def __enter__(self) -> "Steps":
        self.live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.live.__exit__(kind, error, traceback)
