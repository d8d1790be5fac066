"""The runs of a study: each model at every grid point with the choosing seeds, then its best point with every seed."""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

from evidence.records import RunRecord
from evidence.study import DEVELOPMENT, Grid, Plan, Study
from keysift.core.errors import ConfigError
from keysift.sweep.plan import plan_runs
from keysift.train.config import TrainConfig
from keysift.train.settings import apply

Runs = dict[str, TrainConfig]
Score = Callable[[str], float | None]  # of a run by name: lower is better, inf if it diverged, None without a record
RATE = "lr="


def plan_of(study: Study) -> Plan:
    """The plan of a study that trains runs. Raises ConfigError for a study of a benchmark."""
    if study.plan is None:
        raise ConfigError(f"{study.name} trains nothing: its claims are about {study.page.benchmark}")
    return study.plan


def single_models(study: Study) -> list[Study]:
    """One study for each model, in the order of the grids."""
    plan = plan_of(study)
    grids = [Grid(each=(model,), over=grid.over) for grid in plan.grid for model in grid.each]
    return [replace(study, plan=replace(plan, grid=(grid,))) for grid in grids]


@dataclass(frozen=True)
class Required:
    """Runs that a study needs so far. `choosing` run at every grid point, `deciding` at the best."""

    choosing: Runs
    deciding: Runs


def required_runs(study: Study, score: Score) -> Required:
    """Runs of all models. A model whose choosing runs have no record yet has no deciding runs."""
    plan = plan_of(study)
    base = apply(TrainConfig(), study.training)
    choosing: Runs = {}
    deciding: Runs = {}
    for grid in plan.grid:
        for model in grid.each:
            over, best = grid.over, None
            for widened in range(plan.widen + 1):
                points = _points(base, model, over, plan.choosing_seeds)
                choosing |= {name: run for runs in points.values() for name, run in runs.items()}
                best = _best_point(points, score)
                wider = None if best is None else _widened(over, best)
                if wider is None or widened == plan.widen:
                    break
                over = wider
            if plan.seeds_at == "all":
                deciding |= {
                    name: run for runs in _points(base, model, over, plan.seeds).values() for name, run in runs.items()
                }
            elif best is not None:
                deciding |= _points(base, model, over, plan.seeds)[best]
    return Required(choosing, deciding)


def _points(base: TrainConfig, model: str, over: tuple[str, ...], seeds: tuple[int, ...]) -> dict[str, Runs]:
    """The runs of each grid point, by the name of the point."""
    points: dict[str, Runs] = {}
    for name, run in plan_runs(base, (model,), (*over, f"seed={','.join(map(str, seeds))}")).items():
        points.setdefault(name.rpartition("_seed=")[0], {})[name] = run
    return points


def _best_point(points: dict[str, Runs], score: Score) -> str | None:
    """The point with the lowest mean score; None while a run has no record, or if no point finished."""
    means = {}
    for point, runs in points.items():
        scores = [score(name) for name in runs]
        if any(value is None for value in scores):
            return None
        means[point] = statistics.mean(value for value in scores if value is not None)
    best = min(means, key=means.__getitem__)
    return best if math.isfinite(means[best]) else None


def _widened(over: tuple[str, ...], best: str) -> tuple[str, ...] | None:
    """The axes with one more learning rate beyond the best one if that is the lowest or the highest; else None."""
    axis = next((axis for axis in over if axis.startswith(RATE)), None)
    rates = sorted(float(rate) for rate in axis.removeprefix(RATE).split(",")) if axis else []
    if len(rates) < 2:
        return None
    chosen = float(best.rpartition(f"_{RATE}")[2].partition("_")[0])
    if chosen == rates[0]:
        rates = [rates[0] ** 2 / rates[1], *rates]
    elif chosen == rates[-1]:
        rates = [*rates, rates[-1] ** 2 / rates[-2]]
    else:
        return None
    wider = RATE + ",".join(f"{rate!r}" for rate in rates)
    return tuple(wider if part == axis else part for part in over)


def run_score(records: dict[str, RunRecord], plan: Plan, name: str) -> float | None:
    """What the choice of a grid point minimizes; inf for a run that diverged, None for one that is not recorded."""
    if name not in records:
        return None
    record = records[name]
    if not record.finished:
        return math.inf
    if not plan.choose_at:
        return record.val_loss
    cells = record.measures.get(DEVELOPMENT)
    return None if cells is None else -sum(cell["correct"] for cell in cells) / sum(cell["total"] for cell in cells)
