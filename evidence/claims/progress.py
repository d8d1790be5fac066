"""Claims of a study that is part-way: no verdict before the seeds that were planned, and how many there are so far."""

from collections.abc import Collection
from dataclasses import replace
from functools import partial

from evidence.claims.groups import label
from evidence.claims.verdict import Verdict
from evidence.records import RunRecord
from evidence.runs import Runs, plan_of, required_runs, run_score
from evidence.study import Claim, Study
from keysift.train.config import flatten


def unless_unfinished(verdict: Verdict, study: Study, records: dict[str, RunRecord]) -> Verdict:
    """The verdict, or "unfinished" while a model of the claim lacks seeds: more of them could turn an early result."""
    planned, so_far = len(plan_of(study).seeds), seeds_so_far(study, verdict.claim, records)
    if verdict.word == "no records" or so_far == planned:
        return verdict
    return replace(verdict, word="unfinished", n=f"{so_far} of {planned}")


def seeds_so_far(study: Study, claim: Claim, records: dict[str, RunRecord]) -> int:
    """Deciding seeds that every model of a claim has run, at all of the learning rates that its rule compares."""
    plan = plan_of(study)
    required = required_runs(study, partial(run_score, records, plan))
    models = {label(flatten(config)) for config in required.choosing.values()}
    if claim.rule != "order_predicted":
        models &= {claim.ours, claim.theirs}
    return sum(_has_run(seed, models, required.deciding, records) for seed in plan.seeds)


def _has_run(seed: int, models: set[str], deciding: Runs, records: Collection[str]) -> bool:
    own = {name: label(flatten(config)) for name, config in deciding.items() if config.seed == seed}
    runs = {name: model for name, model in own.items() if model in models}
    return set(runs.values()) == models and runs.keys() <= set(records)
