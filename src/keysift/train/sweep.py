"""Many runs from one config: a list of settings crossed with a grid, each run in a process of its own and resumable."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keysift.core.config import from_dict, to_dict
from keysift.core.errors import ConfigError
from keysift.train.config import TrainConfig
from keysift.train.layout import DIAGNOSIS, METRICS, TRAIN, holds_a_run, saved
from keysift.train.metrics import last
from keysift.train.progress import Board
from keysift.train.signals import Stop
from keysift.train.summary import Summary, summary

_POLL = 0.2  # seconds


def points(base: TrainConfig, each: tuple[str, ...], over: tuple[str, ...]) -> dict[str, TrainConfig]:
    """Every run by name: each entry of the list ("arch=transformer depth=2 heads=2 width=32") with every combination
    of the axes ("rate=0.01,0.1" and "seed=0,1")."""
    if base.steps is None:
        raise ConfigError("runs of a sweep end after the same number of steps; add --steps")
    known = to_dict(base)
    listed = [[_setting(word, known) for word in entry.split()] for entry in each] or [[]]
    axes = []
    for axis in over:
        name, values = _setting(axis, known)
        axes.append([(name, value) for value in values.split(",")])
    found: dict[str, TrainConfig] = {}
    for entry, chosen in itertools.product(listed, itertools.product(*axes)):
        settings = [*entry, *chosen]
        name = "_".join(f"{field}={value}" for field, value in settings).replace(os.sep, "-") or "run"
        if name in found:
            raise ConfigError(f"the run {name} is asked for twice; say each once")
        found[name] = from_dict(TrainConfig, {**known, **{field: _value(value) for field, value in settings}})
    return found


def _setting(word: str, known: dict[str, Any]) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals or not value or name not in known:
        raise ConfigError(
            f"a setting is written field=value, an axis field=value,value, with a field of train; got {word!r}"
        )
    return name, value


def _value(text: str) -> Any:
    """A number, true or false where it reads as one, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


@dataclass
class Outcome:
    """What became of a run; `said` is its own last word if it failed."""

    name: str
    summary: Summary | None
    said: str = ""

    @property
    def state(self) -> str:
        return "failed" if self.said else "not started" if self.summary is None else self.summary.state


def sweep(runs: dict[str, TrainConfig], out: Path, *, processes: int, show: bool = True) -> list[Outcome]:
    """Make or finish every run; one that diverged is a result and is left alone.

    A signal is passed on to the runs at work, which save and leave; the same call goes on from there.
    """
    for name, config in runs.items():
        _refuse_another(out / name, config)
    out.mkdir(parents=True, exist_ok=True)
    outcomes = {name: Outcome(name, _summary(out / name)) for name in runs}
    waiting = [name for name, config in runs.items() if not _over(outcomes[name].summary, config)]
    steps = max(config.steps or 0 for config in runs.values())
    board = Board(len(waiting), steps, show=show)
    with Stop() as stop, board.live:
        for name, said in _through(waiting, runs, out, processes, stop, board):
            found = Outcome(name, _summary(out / name), said)
            outcomes[name] = found
            loss = found.summary.loss if found.summary else None
            at = "" if found.summary is None or loss is None else f" at step {found.summary.step}, loss {loss:.4f}"
            board.over(name, found.state + at)
    return list(outcomes.values())


def _through(
    waiting: list[str], runs: dict[str, TrainConfig], out: Path, processes: int, stop: Stop, board: Board
) -> Iterator[tuple[str, str]]:
    """Names of runs as they end, each with what it said if it failed."""
    queue, at_work, passed_on = iter(waiting), dict[str, subprocess.Popen[bytes]](), False
    try:
        while True:
            while not stop.asked and len(at_work) < processes and (name := next(queue, None)) is not None:
                at_work[name] = _start(runs[name], out / name, processes)
            if not at_work:
                return
            if stop.asked and not passed_on:
                board.live.say("asked to stop: the runs at work save and leave")
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
                    # One that had already saved when the signal came once more ends by it: that is no failure.
                    heeded = stop.asked and code in (-signal.SIGINT, -signal.SIGTERM, 130)
                    yield name, "" if heeded else _failure(code, out / name)
    finally:
        for process in at_work.values():
            process.kill()
            process.wait()


def _start(config: TrainConfig, path: Path, processes: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "keysift", "train", "--quiet"]
    if holds_a_run(path):
        command += ["--resume", str(path), "--steps", str(config.steps)]
    else:
        _file(path).write_text(to_toml(config))
        command += ["--config", str(_file(path)), "--out", str(path)]
        warmup = _warmup(config, path.parent)
        command += [] if warmup is None else ["--warmup", str(warmup)]
    # Runs beside each other share the cores; a user who says how many threads is right.
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    with _log(path).open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env={"OMP_NUM_THREADS": threads, **os.environ})


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
    stored = tomllib.loads(_file(path).read_text())
    for name, value in to_dict(config).items():
        before = stored.get(name)
        if name != "steps" and before != value:
            raise ConfigError(f"{path} was made with {name} {before}, not {value}; choose another --out")
    made = saved(path)
    if config.steps is not None and made > config.steps:
        raise ConfigError(f"{path} has made {made} steps, more than the {config.steps} asked for; add --steps")


def _warmup(config: TrainConfig, out: Path) -> int | None:
    """One that follows from the number of steps is laid out once for a sweep, however it is prolonged."""
    if config.warmup is not None:
        return config.warmup
    made: list[int] = [json.loads(path.read_text())["config"]["warmup"] for path in sorted(out.glob(f"*/{TRAIN}"))]
    return made[0] if made else None


def _file(path: Path) -> Path:
    """What a run was asked to be, beside it."""
    return path.with_name(f"{path.name}.toml")


def _summary(path: Path) -> Summary | None:
    return summary(path) if holds_a_run(path) else None


def _over(found: Summary | None, config: TrainConfig) -> bool:
    if found is None:
        return False
    return found.state == "diverged" or (config.steps is not None and found.saved >= config.steps)


def to_toml(config: TrainConfig) -> str:
    """What `keysift train --config` reads back."""
    told = {name: value for name, value in to_dict(config).items() if value is not None}
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in told.items())
