"""Run a study: train, evaluate and record every run that has no record yet.

`repeat_run` trains a recorded run again and compares the results.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from evidence.measures import measure
from evidence.records import RunRecord, make_record, read_records, require_same_settings, write_records
from evidence.repeats import Repeat
from evidence.runs import Runs, initial_runs, plan_of, runs_with_every_seed
from evidence.study import Study
from keysift.core.errors import ConfigError, TrainingError
from keysift.models.architecture import DEFAULT_ARCHS
from keysift.runs.layout import is_run_directory
from keysift.sweep.drive import Outcome, sweep
from keysift.train.config import TrainConfig, flatten


def non_default_settings(config: TrainConfig) -> dict[str, Any]:
    """Settings that differ from the defaults. Records are compared by these, so new settings do not invalidate them."""
    default = flatten(replace(TrainConfig(), model=DEFAULT_ARCHS[config.arch]))
    return {name: value for name, value in flatten(config).items() if name == "arch" or value != default[name]}


def run_study(
    study: Study, runs_dir: Path, *, processes: int, show: bool = True, log: Callable[[str], None]
) -> tuple[dict[str, RunRecord], list[Outcome]]:
    """All records by name, and the outcomes of the runs trained now.

    Recorded runs are skipped even if their run directory does not exist, so a study can continue on another machine.
    """
    plan = plan_of(study)
    records = read_records(study.records)
    outcomes: list[Outcome] = []

    def run_missing(runs: Runs) -> bool:
        """Train runs without a record. Returns whether all are recorded."""
        for name in runs.keys() & records.keys():
            require_same_settings(records[name], non_default_settings(runs[name]), study.records)

        def save(outcome: Outcome) -> None:
            name = outcome.name
            records[name] = make_record(name, runs_dir / name, non_default_settings(runs[name]), {})
            write_records(study.records, records.values())

        missing = {name: config for name, config in runs.items() if name not in records}
        if missing:
            outcomes.extend(sweep(missing, runs_dir, processes=processes, show=show, on_end=save))
        return all(name in records for name in runs)

    loss = partial(_validation_loss, records)
    if run_missing(initial_runs(study)) and run_missing(runs_with_every_seed(study, loss)):
        for name, config in runs_with_every_seed(study, loss).items():
            if records[name].finished and set(records[name].measures) != set(plan.measure):
                run_dir = runs_dir / name
                if not is_run_directory(run_dir):
                    log(f"{name} is recorded but not measured, and {run_dir} is gone; remove its line to train it")
                    continue
                log(f"measuring {', '.join(plan.measure)} of {name}")
                measures = measure(run_dir, plan)
                records[name] = make_record(name, run_dir, non_default_settings(config), measures)
                write_records(study.records, records.values())
    return records, outcomes


def _validation_loss(records: dict[str, RunRecord], name: str) -> float | None:
    return records[name].val_loss if name in records and records[name].finished else None


def repeat_run(study: Study, name: str, runs_dir: Path, *, show: bool = True) -> Repeat | None:
    """Train a recorded run again and write it to repeats.jsonl. Returns None if training was interrupted."""
    records = read_records(study.records)
    runs = {**initial_runs(study), **runs_with_every_seed(study, partial(_validation_loss, records))}
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
    measures = measure(runs_dir / name, plan_of(study)) if records[name].measures else {}
    second = make_record(name, runs_dir / name, settings, measures)
    if second.sessions[0] == records[name].sessions[0]:
        raise ConfigError(f"{runs_dir / name} is the recorded run itself; choose another --runs-dir")
    write_records(study.repeats, {**read_records(study.repeats), name: second}.values())
    return Repeat(second, list(records.values()))
