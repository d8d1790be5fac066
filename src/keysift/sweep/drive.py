"""Make the runs of a sweep, each in a process of its own and resumable."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keysift.core.disk import write_whole
from keysift.core.errors import ConfigError, DataError
from keysift.core.threads import share
from keysift.runs.directory import Run
from keysift.runs.layout import DIAGNOSIS, METRICS, TRAIN, holds_a_run, in_use, saved
from keysift.runs.metrics import last
from keysift.runs.summary import Summary, summary
from keysift.sweep.board import Board
from keysift.train.config import TrainConfig, flatten
from keysift.train.config_file import read_toml, to_toml
from keysift.train.facts import read_facts
from keysift.train.signals import Stop

_POLL = 0.2  # seconds


@dataclass
class Outcome:
    """What became of a run; `said` is its error message if it failed."""

    name: str
    summary: Summary | None
    said: str = ""

    @property
    def state(self) -> str:
        return "failed" if self.said else "not started" if self.summary is None else self.summary.state


def sweep(
    runs: dict[str, TrainConfig],
    out: Path,
    *,
    processes: int,
    show: bool = True,
    on_over: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Make or finish every run; one that diverged is a result and is left alone. `on_over` is told of each run that
    is finished or diverged, those that were before this call included.

    A signal is passed on to the runs at work, which save and leave; the same call resumes them.
    """
    for name, config in runs.items():
        _refuse_another(out / name, config)
    out.mkdir(parents=True, exist_ok=True)
    mended = {name: _mended(out / name) for name in runs if holds_a_run(out / name)}
    outcomes = {name: Outcome(name, _summary(out / name), mended.get(name, "")) for name in runs}
    waiting = [name for name, config in runs.items() if not _over(outcomes[name].summary, config)]
    for name in runs:
        if name not in waiting and not outcomes[name].said:
            on_over(outcomes[name])
    steps = max(config.steps or 0 for config in runs.values())
    board = Board(len(waiting), steps, show=show)
    # Runs beside each other share the free cores, unless the user says how many threads.
    environment = share(processes)
    with Stop() as stop, board.live:
        for name, said in _run_all(waiting, runs, out, processes, environment, stop, board):
            found = Outcome(name, _summary(out / name), said)
            outcomes[name] = found
            loss = found.summary.loss if found.summary else None
            at = "" if found.summary is None or loss is None else f" at step {found.summary.step}, loss {loss:.4f}"
            board.over(name, found.state + at)
            if _over(found.summary, runs[name]):
                on_over(found)
    return list(outcomes.values())


def _run_all(
    waiting: list[str],
    runs: dict[str, TrainConfig],
    out: Path,
    processes: int,
    environment: dict[str, str],
    stop: Stop,
    board: Board,
) -> Iterator[tuple[str, str]]:
    """Names of runs as they end, each with its error message if it failed."""
    queue, at_work, passed_on = iter(waiting), dict[str, subprocess.Popen[bytes]](), False
    try:
        while True:
            while not stop.asked and len(at_work) < processes and (name := next(queue, None)) is not None:
                at_work[name] = _start(runs[name], out / name, environment)
            if not at_work:
                return
            if stop.asked and not passed_on:
                board.live.say("interrupted: the runs at work save and leave")
                for process in at_work.values():
                    process.terminate()
                passed_on = True
            time.sleep(_POLL)
            for name, process in list(at_work.items()):
                code = process.poll()
                if code is None:
                    board.at_work(name, last(out / name / METRICS))
                else:
                    del at_work[name]
                    # A run that had already saved when the signal came once more ends by it: that is no failure.
                    heeded = stop.asked and code in (-signal.SIGINT, -signal.SIGTERM, 130)
                    yield name, "" if heeded else _failure(code, out / name)
    finally:
        for process in at_work.values():
            process.kill()
            process.wait()


def _start(config: TrainConfig, path: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    changes: dict[str, Any] = {"steps": config.steps}
    if not holds_a_run(path):
        write_whole(_file(path), to_toml(config))
        changes["warmup"] = _warmup(config, path.parent)
    # -P: nothing is imported from the working folder, where a numpy.py may lie beside the user's text.
    command = [sys.executable, "-P", "-m", "keysift.sweep.child", str(_file(path)), str(path), json.dumps(changes)]
    with _log(path).open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def _failure(code: int, path: Path) -> str:
    if code == 0 or (path / DIAGNOSIS).is_file():
        return ""
    said = _log(path).read_text(errors="replace").strip()
    return said[-500:] or f"it ended with exit code {code}"


def _log(path: Path) -> Path:
    """Beside the run: what goes wrong before there is a run directory is kept too."""
    return path.with_name(f"{path.name}.log")


def _refuse_another(path: Path, config: TrainConfig) -> None:
    """A folder of the same name may hold a run of another sweep; its figures must not pass for this one's."""
    if not holds_a_run(path):
        return
    if not _file(path).is_file():
        raise ConfigError(f"{path} was not made by a sweep; choose another --out")
    stored, asked = flatten(read_toml(_file(path))), flatten(config)
    for name in {**stored, **asked}:
        if name != "steps" and stored.get(name) != asked.get(name):
            raise ConfigError(
                f"{path} was made with {name} {stored.get(name)}, not {asked.get(name)}; choose another --out"
            )
    made = saved(path)
    if config.steps is not None and made > config.steps:
        raise ConfigError(f"{path} has made {made} steps, more than the {config.steps} asked for; add --steps")


def _warmup(config: TrainConfig, out: Path) -> int | None:
    """One that follows from the number of steps is laid out once for a sweep, however it is prolonged."""
    if config.warmup is not None:
        return config.warmup
    made = [read_facts(Run(path.parent)).config.warmup for path in sorted(out.glob(f"*/{TRAIN}"))]
    return made[0] if made else None


def _file(path: Path) -> Path:
    """What a run was asked to be, beside it."""
    return path.with_name(f"{path.name}.toml")


def _mended(path: Path) -> str:
    """Do what a kill after a checkpoint left undone: until then the run counts as if it had not been written.
    What is wrong with the run, if that cannot be done."""
    if in_use(path):
        return ""
    run = Run(path)
    try:
        run.lock()
        run.recover()
    except DataError as error:
        return str(error)
    finally:
        run.unlock()
    return ""


def _summary(path: Path) -> Summary | None:
    return summary(path) if holds_a_run(path) else None


def _over(found: Summary | None, config: TrainConfig) -> bool:
    if found is None:
        return False
    return found.state == "diverged" or (config.steps is not None and found.saved >= config.steps)
