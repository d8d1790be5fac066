"""How far the work is: a bar on a terminal; elsewhere a line on standard error now and then."""

from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

from keysift.core.live import Live
from keysift.core.shown import Words


class Bar:
    """Of work in several pieces, each named when it begins; gone from a terminal when all is done."""

    def __init__(self) -> None:
        columns = (Words("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._live = Live(*columns, show=True, transient=True)
        self._tasks: dict[str, int] = {}

    def __enter__(self) -> "Bar":
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, traceback)

    def update(self, what: str, done: int, total: int) -> None:
        bars = self._live.bars
        if bars is not None:
            if what not in self._tasks:
                self._tasks[what] = bars.add_task(what, total=total)
            bars.update(self._tasks[what], completed=done, total=total)  # type: ignore[arg-type]
        self._live.now_and_then(f"{what}: {done} of {total}")


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
