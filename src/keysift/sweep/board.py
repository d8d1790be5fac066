"""How the runs of a sweep are doing: a bar for each run at work and one for all."""

from typing import Any

from rich.progress import BarColumn, TaskID

from keysift.core.live import Live
from keysift.core.shown import Words


class Board:
    def __init__(self, runs: int, steps: int, *, show: bool) -> None:
        self._steps = steps
        self._runs, self._over = runs, 0
        columns = (Words("{task.description}"), BarColumn(), Words("{task.fields[news]}"))
        self.live = Live(*columns, show=show)
        self._tasks: dict[str, TaskID] = {}
        self._news: dict[str, str] = {}
        if self.live.bars is not None:
            self._all = self.live.bars.add_task("all runs", total=float(runs), news=f"0/{runs}")

    def at_work(self, name: str, line: dict[str, Any]) -> None:
        """What a run last wrote to its metrics."""
        step = line.get("step", 0)
        news = f"step {step}/{self._steps}  loss {line['loss']:.4f}" if line else "starting"
        self._news[name] = news
        if self.live.bars is not None:
            if name not in self._tasks:
                self._tasks[name] = self.live.bars.add_task(name, total=float(self._steps), news=news)
            self.live.bars.update(self._tasks[name], completed=step, news=news)
        self.live.now_and_then("; ".join(f"{run}: {said}" for run, said in self._news.items()))

    def over(self, name: str, text: str) -> None:
        self._over += 1
        self._news.pop(name, None)
        if self.live.bars is not None:
            if name in self._tasks:
                self.live.bars.remove_task(self._tasks.pop(name))
            self.live.bars.update(self._all, completed=self._over, news=f"{self._over}/{self._runs}")
        self.live.say(f"{self._over}/{self._runs}  {name}: {text}")
