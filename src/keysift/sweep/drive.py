"""Drive the runs of a sweep. Each trains in its own process, here or on a cluster, and can be resumed."""

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keysift.core.disk import write_atomic
from keysift.core.errors import ConfigError, DataError
from keysift.records.runs import RunSummary
from keysift.runs.directory import Run
from keysift.runs.layout import DIAGNOSIS, METRICS, TRAIN, is_locked, is_run_directory, saved_step
from keysift.runs.metrics import last
from keysift.runs.summary import summary
from keysift.sweep.board import Board
from keysift.sweep.launch import Launcher, LocalLauncher, Process, config_file, log_file
from keysift.train.config import TrainConfig, flatten
from keysift.train.manifest import read_manifest
from keysift.train.settings import read_toml, to_toml
from keysift.train.signals import StopRequest

_POLL = 0.2  # seconds


@dataclass
class Outcome:
    """How a run ended; `error` is its message if it failed."""

    name: str
    summary: RunSummary | None
    error: str = ""

    @property
    def state(self) -> str:
        return "failed" if self.error else "not started" if self.summary is None else self.summary.state


def sweep(
    runs: dict[str, TrainConfig],
    out: Path,
    *,
    processes: int = 1,
    launcher: Launcher | None = None,
    show: bool = True,
    on_end: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Train every run that is not finished, `processes` at a time or as `launcher` says. Diverged runs are finished.

    `on_end` receives each finished run, including those that were finished before this call. A signal is forwarded to
    the active runs, which save and exit; the same call resumes them.
    """
    for name, config in runs.items():
        _check_same_config(out / name, config)
    out.mkdir(parents=True, exist_ok=True)
    repairs = {name: _recover(out / name) for name in runs if is_run_directory(out / name)}
    outcomes = {name: Outcome(name, _summary(out / name), repairs.get(name, "")) for name in runs}
    waiting = [name for name, config in runs.items() if not _is_finished(outcomes[name].summary, config)]
    for name in runs:
        if name not in waiting and not outcomes[name].error:
            on_end(outcomes[name])
    steps = max(config.steps or 0 for config in runs.values())
    board = Board(len(waiting), steps, show=show)
    launcher = launcher or LocalLauncher(processes)
    with StopRequest() as stop, board.live:
        for name, error in _run_all(waiting, runs, out, launcher, stop, board):
            outcome = outcomes[name] = Outcome(name, _summary(out / name), error)
            run = outcome.summary
            position = "" if run is None or run.loss is None else f" at step {run.step}, loss {run.loss:.4f}"
            board.end(name, outcome.state + position)
            if _is_finished(run, runs[name]):
                on_end(outcome)
    return list(outcomes.values())


def _run_all(
    waiting: list[str],
    runs: dict[str, TrainConfig],
    out: Path,
    launcher: Launcher,
    stop: StopRequest,
    board: Board,
) -> Iterator[tuple[str, str]]:
    """Yield the name of each run as it ends, with its error message if it failed."""
    queue, active, forwarded = iter(waiting), dict[str, Process](), False
    try:
        while True:
            while not stop.requested and len(active) < launcher.slots and (name := next(queue, None)) is not None:
                active[name] = _start(runs[name], out / name, launcher)
            if not active:
                return
            if stop.requested and not forwarded:
                board.live.print("interrupted: active runs save and exit")
                for process in active.values():
                    process.terminate()
                forwarded = True
            time.sleep(_POLL)
            for name, process in list(active.items()):
                code = process.poll()
                if code is None:
                    board.update(name, last(out / name / METRICS))
                else:
                    del active[name]
                    # A second signal may end a run that has already saved; that is not a failure.
                    interrupted = stop.requested and code in (-signal.SIGINT, -signal.SIGTERM, 130)
                    yield name, "" if interrupted else _failure(code, out / name)
    finally:
        for process in active.values():
            process.kill()
        while any(process.poll() is None for process in active.values()):
            time.sleep(_POLL)


def _start(config: TrainConfig, path: Path, launcher: Launcher) -> Process:
    changes: dict[str, Any] = {"steps": config.steps}
    if not is_run_directory(path):
        write_atomic(config_file(path), to_toml(config))
        changes["warmup"] = _warmup(config, path.parent)
    return launcher.start(config, path, changes)


def _failure(code: int, path: Path) -> str:
    """The error message of an ended process; empty if it succeeded or the run diverged."""
    if code == 0 or (path / DIAGNOSIS).is_file():
        return ""
    text = log_file(path).read_text(encoding="utf-8", errors="replace").strip()
    return text[-500:] or f"it ended with exit code {code}"


def _check_same_config(path: Path, config: TrainConfig) -> None:
    """Raise if the directory contains a run with another config, whose results would be taken for this one's."""
    if not is_run_directory(path):
        return
    if not config_file(path).is_file():
        raise ConfigError(f"{path} was not made by a sweep; choose another --out")
    stored, wanted = flatten(read_toml(config_file(path))), flatten(config)
    for name in {**stored, **wanted}:
        if name != "steps" and stored.get(name) != wanted.get(name):
            raise ConfigError(
                f"{path} was made with {name} {stored.get(name)}, not {wanted.get(name)}; choose another --out"
            )
    trained = saved_step(path)
    if config.steps is not None and trained > config.steps:
        raise ConfigError(f"{path} has trained {trained} steps, more than --steps {config.steps}; raise --steps")


def _warmup(config: TrainConfig, out: Path) -> int | None:
    """The warm-up of a new run. A default warm-up is that of existing runs, so that extending a sweep keeps it."""
    if config.warmup is not None:
        return config.warmup
    existing = [read_manifest(Run(path.parent)).config.warmup for path in sorted(out.glob(f"*/{TRAIN}"))]
    return existing[0] if existing else None


def _recover(path: Path) -> str:
    """Complete a checkpoint that a killed process left unfinished. Returns an error message if that fails."""
    if is_locked(path):
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


def _summary(path: Path) -> RunSummary | None:
    return summary(path) if is_run_directory(path) else None


def _is_finished(run: RunSummary | None, config: TrainConfig) -> bool:
    if run is None:
        return False
    return run.state == "diverged" or (config.steps is not None and run.saved >= config.steps)
