"""Run a study: train, evaluate and record every run that has no record yet.

`repeat_run` trains a recorded run again and compares the results.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from evidence.measures import Points, measure
from evidence.records import RunRecord, make_record, read_records, require_same_settings, write_records
from evidence.repeats import Repeat
from evidence.runs import Runs, plan_of, required_runs, run_score, single_models
from evidence.study import DEVELOPMENT, Study
from keysift.core.errors import ConfigError, TrainingError
from keysift.models.architecture import DEFAULT_ARCHS
from keysift.runs.layout import is_run_directory
from keysift.sweep.drive import Outcome, sweep
from keysift.sweep.launch import Launcher
from keysift.train.config import TrainConfig, flatten


def non_default_settings(config: TrainConfig) -> dict[str, Any]:
    """Settings that differ from the defaults. Records are compared by these, so new settings do not invalidate them."""
    default = flatten(replace(TrainConfig(), model=DEFAULT_ARCHS[config.arch]))
    return {name: value for name, value in flatten(config).items() if name == "arch" or value != default[name]}


def run_study(
    study: Study,
    runs_dir: Path,
    *,
    processes: int = 1,
    launcher: Launcher | None = None,
    show: bool = True,
    log: Callable[[str], None],
) -> tuple[dict[str, RunRecord], list[Outcome]]:
    """All records by name, and the outcomes of the runs trained now.

    Recorded runs are skipped even if their run directory does not exist, so a study can continue on another machine.
    With one run at a time, a model has all of its runs before the next begins, so a study that stops early has whole
    models.
    """
    one_by_one = processes == 1 and launcher is None
    outcomes: list[Outcome] = []
    for part in single_models(study) if one_by_one else [study]:
        ended, complete = _run_models(part, runs_dir, processes=processes, launcher=launcher, show=show, log=log)
        outcomes += ended
        interrupted = not complete and not any(outcome.error for outcome in ended)
        if interrupted:
            break
    return read_records(study.records), outcomes


def _run_models(
    study: Study,
    runs_dir: Path,
    *,
    processes: int,
    launcher: Launcher | None,
    show: bool,
    log: Callable[[str], None],
) -> tuple[list[Outcome], bool]:
    """Outcomes of the runs trained now, and whether every run has a record."""
    plan = plan_of(study)
    records = read_records(study.records)
    outcomes: list[Outcome] = []

    def record(name: str, config: TrainConfig, measures: dict[str, Points]) -> None:
        records[name] = make_record(name, runs_dir / name, non_default_settings(config), measures)
        write_records(study.records, records.values())

    def measure_missing(runs: Runs, names: Collection[str]) -> None:
        """Measure finished runs that lack one of the named measurements."""
        for name, config in runs.items():
            wanted = {*records[name].measures, *names}
            if not records[name].finished or set(records[name].measures) == wanted:
                continue
            if not is_run_directory(runs_dir / name):
                log(f"{name} is recorded but not measured, and {runs_dir / name} is gone; remove its line to train it")
                continue
            log(f"measuring {', '.join(sorted(names))} of {name}")
            record(name, config, {**records[name].measures, **measure(runs_dir / name, plan, names)})

    def train_missing(runs: Runs) -> bool:
        """Train runs without a record. Returns whether all are recorded."""
        missing = {name: config for name, config in runs.items() if name not in records}
        if missing:
            save = lambda outcome: record(outcome.name, runs[outcome.name], {})  # noqa: E731
            outcomes.extend(sweep(missing, runs_dir, processes=processes, launcher=launcher, show=show, on_end=save))
        return all(name in records for name in runs)

    score = partial(run_score, records, plan)
    required = required_runs(study, score)
    for name, config in {**required.choosing, **required.deciding}.items():
        if name in records:
            require_same_settings(records[name], non_default_settings(config), study.records)
    while not required.choosing.keys() <= records.keys() or not required.deciding.keys() <= records.keys():
        # Deciding runs are known once their model has chosen, so a pass may find new ones.
        if not train_missing(required.choosing):
            return outcomes, False
        if plan.choose_at:
            measure_missing(required.choosing, {DEVELOPMENT})
        before, required = required, required_runs(study, score)
        if required.choosing.keys() <= before.choosing.keys() and not train_missing(required.deciding):
            return outcomes, False
    measure_missing(required.deciding, plan.measure)
    return outcomes, True


def repeat_run(study: Study, name: str, runs_dir: Path, *, show: bool = True) -> Repeat | None:
    """Train a recorded run again and write it to repeats.jsonl. Returns None if training was interrupted."""
    records = read_records(study.records)
    plan = plan_of(study)
    required = required_runs(study, partial(run_score, records, plan))
    runs = {**required.choosing, **required.deciding}
    if name not in records or name not in runs:
        names = "\n  ".join(known for known in records if known in runs)
        raise ConfigError(f"{study.records} has no run {name} of this study; choose one of\n  {names}")
    settings = non_default_settings(runs[name])
    require_same_settings(records[name], settings, study.records)
    (outcome,) = sweep({name: runs[name]}, runs_dir, processes=1, show=show)
    if outcome.error:
        raise TrainingError(f"{name} failed: {outcome.error}")
    if outcome.state not in ("finished", "diverged"):
        return None
    measures = measure(runs_dir / name, plan, records[name].measures)
    second = make_record(name, runs_dir / name, settings, measures)
    if second.sessions[0] == records[name].sessions[0]:
        raise ConfigError(f"{runs_dir / name} is the recorded run itself; choose another --runs-dir")
    write_records(study.repeats, {**read_records(study.repeats), name: second}.values())
    return Repeat(second, list(records.values()))
