"""Carry out a study: what its records do not hold yet is trained, measured and recorded, run by run.

`make_again` trains one recorded run a second time, to see whether its record holds.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from keysift.core.errors import ConfigError, TrainingError
from keysift.models.arch import DEFAULTS
from keysift.runs.layout import holds_a_run
from keysift.sweep.drive import Outcome, sweep
from keysift.sweep.measure import measured
from keysift.sweep.records import Record, read_records, record, refuse_another, write_records
from keysift.sweep.repeats import AGAIN, Repeat
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

    figure = partial(_figure, known)
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


def _figure(known: dict[str, Record], name: str) -> float | None:
    """What decides the best point of a contestant."""
    return known[name].val_loss if name in known and known[name].counts else None


def make_again(study: Study, name: str, out: Path, kept: Path, *, show: bool = True) -> Repeat | None:
    """The run of that name, recorded in `again` beside `kept`; None if it was interrupted."""
    known = read_records(kept)
    runs = {**study.first(), **study.then(partial(_figure, known))}
    if name not in known or name not in runs:
        names = "\n  ".join(one for one in known if one in runs)
        raise ConfigError(f"{kept} has no run {name} of this study; choose one of\n  {names}")
    refuse_another(known[name], asked(runs[name]), kept)
    (outcome,) = sweep({name: runs[name]}, out, processes=1, show=show)
    if outcome.said:
        raise TrainingError(f"{name} failed: {outcome.said}")
    if outcome.state not in ("finished", "diverged"):
        return None
    measures = measured(out / name, study.plan) if known[name].measures else {}
    again = record(name, out / name, asked(runs[name]), measures)
    if again.sessions[0] == known[name].sessions[0]:
        raise ConfigError(f"{out / name} is the recorded run itself; choose another --out, with --records {kept}")
    file = kept.parent / AGAIN / kept.name
    write_records(file, {**read_records(file), name: again}.values())
    return Repeat(again, list(known.values()))
