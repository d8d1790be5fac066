"""Carry out a study: what its records do not hold yet is trained, measured and recorded, run by run."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from keysift.models.arch import DEFAULTS
from keysift.runs.layout import holds_a_run
from keysift.sweep.drive import Outcome, sweep
from keysift.sweep.measure import measured
from keysift.sweep.records import Record, read_records, record, refuse_another, write_records
from keysift.sweep.study import Study
from keysift.train.config import TrainConfig, flatten


def asked(config: TrainConfig) -> dict[str, Any]:
    """What is not the default, so that a record stays good when a later version has more settings."""
    default = flatten(replace(TrainConfig(), model=DEFAULTS[config.arch]))
    return {name: value for name, value in flatten(config).items() if name == "arch" or value != default[name]}


def carry_out(
    study: Study, out: Path, kept: Path, *, processes: int, show: bool = True, say: Callable[[str], None]
) -> tuple[dict[str, Record], list[Outcome]]:
    """Records by name, and the runs of `out` that were at work. A run that is recorded needs no directory: `out` may be
    empty, on another machine."""
    known = read_records(kept)
    made: list[Outcome] = []

    def go_on(runs: dict[str, TrainConfig]) -> bool:
        """Whether all of them are recorded now."""
        for name in runs.keys() & known.keys():
            refuse_another(known[name], asked(runs[name]), kept)

        def keep(outcome: Outcome) -> None:
            name = outcome.name
            known[name] = record(name, out / name, asked(runs[name]), {})
            write_records(kept, known.values())

        missing = {name: config for name, config in runs.items() if name not in known}
        if missing:
            made.extend(sweep(missing, out, processes=processes, show=show, on_over=keep))
        return all(name in known for name in runs)

    def figure(name: str) -> float | None:
        return known[name].val_loss if known[name].counts else None

    if go_on(study.first()) and go_on(study.then(figure)):
        for name, config in study.then(figure).items():
            if known[name].counts and set(known[name].measures) != set(study.plan.measure):
                if not holds_a_run(out / name):
                    say(f"{name} is recorded but not measured, and {out / name} is gone; remove its line to train it")
                    continue
                say(f"measuring {', '.join(study.plan.measure)} of {name}")
                known[name] = record(name, out / name, asked(config), measured(out / name, study.plan))
                write_records(kept, known.values())
    return known, made
