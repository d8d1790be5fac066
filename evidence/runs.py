"""The runs of a study: each model at every grid point with one seed, then its best point with every seed."""

from collections.abc import Callable

from evidence.study import Plan, Study
from keysift.core.errors import ConfigError
from keysift.sweep.plan import plan_runs
from keysift.train.config import TrainConfig
from keysift.train.settings import apply

Runs = dict[str, TrainConfig]


def plan_of(study: Study) -> Plan:
    """The plan of a study that trains runs. Raises ConfigError for a study of a benchmark."""
    if study.plan is None:
        raise ConfigError(f"{study.name} trains nothing: its claims are about {study.page.benchmark}")
    return study.plan


def initial_runs(study: Study) -> Runs:
    """Every grid point with the first seed, or with every seed where the plan says so."""
    plan = plan_of(study)
    seeds = plan.seeds if plan.seeds_at == "all" else plan.seeds[:1]
    return {name: run for runs in _runs_by_model(study, seeds) for name, run in runs.items()}


def runs_with_every_seed(study: Study, loss: Callable[[str], float | None]) -> Runs:
    """The grid point of each model whose first seed has the lowest loss, with every seed.

    `loss` returns the loss of a run by name, or None if the run did not finish. Where every point has every seed,
    this is every run.
    """
    plan = plan_of(study)
    if plan.seeds_at == "all":
        return initial_runs(study)
    chosen: Runs = {}
    first_seed, every_seed = _runs_by_model(study, plan.seeds[:1]), _runs_by_model(study, plan.seeds)
    for first, runs in zip(first_seed, every_seed, strict=True):
        losses = {name: value for name in first if (value := loss(name)) is not None}
        if losses:
            best = _without_seed(min(losses, key=lambda name: losses[name]))
            chosen |= {name: run for name, run in runs.items() if _without_seed(name) == best}
    return chosen


def _without_seed(name: str) -> str:
    return name.rpartition("_seed=")[0]


def _runs_by_model(study: Study, seeds: tuple[int, ...]) -> list[Runs]:
    base = apply(TrainConfig(), study.training)
    axis = f"seed={','.join(map(str, seeds))}"
    return [plan_runs(base, (model,), (*grid.over, axis)) for grid in plan_of(study).grid for model in grid.each]
