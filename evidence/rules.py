"""The rules that decide claims from the records of a study.

A rule takes a claim (evidence.study.Claim) and the groups of the study, and returns a Verdict. Rules about benchmarks
are in evidence.latency. `corrected` applies Holm's correction to the primary claims of all studies.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scipy import stats

from evidence.groups import SeedGroup, SeedSample, best_groups, find_best
from evidence.paired import ALPHA, MIN_SEEDS, MOST_SEEDS, Comparison, Word, holm
from evidence.study import Claim, RuleName

LEARNED = 0.5  # accuracy at the training length below which a model has not learned the task
NEAR, FAR = 0.5, 8  # contexts between which the rise of the loss is taken, in training lengths
BEST_ROPE = "best RoPE factor"
_PAIRED = "differ in a paired t-test over seeds at the 5% level, with at least three seeds"


@dataclass(frozen=True)
class Verdict:
    """`why` gives the numbers in a sentence; `effect` and `n` are the cells of the table of claims."""

    claim: Claim
    word: Word
    why: str
    effect: str = ""
    n: str = ""
    comparison: Comparison | None = None

    @property
    def text(self) -> str:
        """The word, with the number of seeds that would decide where it is known."""
        if self.word != "underpowered" or self.comparison is None:
            return self.word
        needed = self.comparison.seeds_needed
        return f"underpowered (n needed: {f'over {MOST_SEEDS}' if needed is None else needed})"


@dataclass(frozen=True)
class Rule:
    statement: str
    decide: Callable[[Claim, Sequence[SeedGroup]], Verdict]


def corrected(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Verdicts with the words of primary claims decided by Holm's adjusted p-values. Claims without data count too."""
    primary = [verdict for verdict in verdicts if verdict.claim.primary]
    adjusted = dict(
        zip(map(id, primary), holm([v.comparison.p if v.comparison else 1.0 for v in primary]), strict=True)
    )
    results = []
    for verdict in verdicts:
        decided_by_p = verdict.word in ("supported", "contradicted") and verdict.comparison is not None
        if verdict.claim.primary and decided_by_p:
            assert verdict.comparison is not None
            verdict = replace(verdict, word=verdict.comparison.word(adjusted[id(verdict)]))
        results.append(verdict)
    return results


def missing(claim: Claim, what: str) -> Verdict:
    return Verdict(claim, "no records", f"no record of {what} yet")


def _compare(claim: Claim, high: SeedSample, low: SeedSample, why: str, effect: str) -> Verdict:
    """The verdict on a positive difference `high - low`. `{}` in `effect` stands for the difference as text."""
    comparison = Comparison(high.minus(low), claim.margin)
    if not comparison.n:
        return missing(claim, "a seed that both models have")
    word = comparison.word(comparison.p)
    return Verdict(claim, word, why, effect.format(comparison.interval), str(comparison.n), comparison)


def no_divergence(claim: Claim, groups: Sequence[SeedGroup]) -> Verdict:
    ours, theirs = ([group for group in groups if group.label == name] for name in (claim.ours, claim.theirs))
    if not ours or not theirs:
        return missing(claim, "both models")
    diverged, total = zip(*((sum(g.diverged for g in side), _runs(side)) for side in (ours, theirs)), strict=True)
    effect = f"{diverged[0]} of {total[0]} {claim.ours} runs diverged, {diverged[1]} of {total[1]} {claim.theirs} runs"
    seeds = min(len(group.records) for group in (*ours, *theirs))
    table = [[count, runs - count] for count, runs in zip(diverged, total, strict=True)]
    p = float(stats.fisher_exact(table).pvalue)
    decided = seeds >= MIN_SEEDS and p < ALPHA
    fewer = diverged[0] / total[0] < diverged[1] / total[1]
    word: Word = "underpowered" if not decided else "supported" if fewer else "contradicted"
    return Verdict(claim, word, f"{effect}; p = {p:.2g} in Fisher's exact test", effect, str(seeds))


def _runs(groups: Sequence[SeedGroup]) -> int:
    return sum(len(group.records) for group in groups)


def accuracy_higher(claim: Claim, groups: Sequence[SeedGroup]) -> Verdict:
    ours, theirs = find_best(groups, claim.ours), find_best(groups, claim.theirs)
    high = ours.accuracy_at(claim.length, claim.our_setting) if ours else None
    low = theirs.accuracy_at(claim.length, claim.their_setting) if theirs else None
    if high is None or low is None:
        return missing(claim, "the accuracy by length of both models")
    why = f"{high.mean:.1%} against {low.mean:.1%} of the answers are correct"
    trained = [accuracy for g in (ours, theirs) if g and (accuracy := g.accuracy_at(1, "as trained"))]
    verdict = _compare(claim, high, low, why, "accuracy {}")
    if trained and all(accuracy.mean < LEARNED for accuracy in trained):
        shares = " and ".join(f"{accuracy.mean:.0%}" for accuracy in trained)
        return replace(verdict, word="task not learned by either", why=f"{shares} at the training length; {why}")
    return verdict


def loss_rise_lower(claim: Claim, groups: Sequence[SeedGroup]) -> Verdict:
    low = _rise(find_best(groups, claim.ours), claim.our_setting)
    high = _rise(find_best(groups, claim.theirs), claim.their_setting)
    if low is None or high is None:
        return missing(claim, "the loss by position of both models")
    why = f"a rise of {low.mean:+.3f} against {high.mean:+.3f} nats"
    return _compare(claim, high, low, why, f"rise of {claim.theirs} minus rise of {claim.ours} {{}} nats")


def _rise(group: SeedGroup | None, setting: str) -> SeedSample | None:
    """Loss at FAR in a setting minus loss at NEAR as trained, for each seed."""
    near = group.loss_at(NEAR, "as trained") if group else None
    if group is None or near is None:
        return None
    far = group.loss_at_best_rope(FAR) if setting == BEST_ROPE else group.loss_at(FAR, setting)
    if far is None:
        return None
    return SeedSample(values=far.minus(near), seeds=tuple(sorted(set(far.seeds) & set(near.seeds))))


def loss_lower(claim: Claim, groups: Sequence[SeedGroup]) -> Verdict:
    low, high = find_best(groups, claim.ours), find_best(groups, claim.theirs)
    if high is None or low is None or high.losses is None or low.losses is None:
        return missing(claim, "both models")
    why = f"loss {low.losses.mean:.4f} of {claim.ours} against {high.losses.mean:.4f} of {claim.theirs}"
    return _compare(claim, high.losses, low.losses, why, "loss {} nats")


def fewer_parameters(claim: Claim, groups: Sequence[SeedGroup]) -> Verdict:
    """For each seed, the mean log ratio of parameters at equal loss over the sizes of our model."""
    best = sorted(best_groups(groups), key=lambda group: group.parameters)
    ours, theirs = ([g for g in best if g.label == name and g.losses] for name in (claim.ours, claim.theirs))
    seeds = sorted(set.intersection(*(set(g.losses.seeds) for g in (*ours, *theirs) if g.losses))) if ours else []
    savings = []
    for seed in seeds:
        curve = [(group.parameters, _loss(group, seed)) for group in theirs]
        needed = [(group.parameters, _parameters_at(_loss(group, seed), curve)) for group in ours]
        logs = [math.log(size / own) for own, size in needed if size is not None]
        savings += [statistics.mean(logs)] if logs else []
    if not savings:
        return missing(claim, "a loss that both models reach")
    comparison = Comparison(tuple(savings), claim.margin)
    bounds = comparison.bounds()
    factors = "" if bounds is None else f" ({math.exp(-bounds[1]):.2f} to {math.exp(-bounds[0]):.2f})"
    effect = f"{math.exp(-comparison.mean):.2f}{factors} times the {claim.theirs}'s parameters"
    return Verdict(claim, comparison.word(comparison.p), effect, effect, str(comparison.n), comparison)


def _loss(group: SeedGroup, seed: int) -> float:
    assert group.losses is not None
    return group.losses.values[group.losses.seeds.index(seed)]


def _parameters_at(loss: float, curve: list[tuple[int, float]]) -> float | None:
    """Parameters at which a falling curve reaches a loss, interpolated in log parameters; None outside the curve."""
    for (small, high), (large, low) in itertools.pairwise(curve):
        if low <= loss <= high and high > low:
            fraction = (high - loss) / (high - low)
            return math.exp(math.log(small) + fraction * (math.log(large) - math.log(small)))
    return None


RULES: dict[RuleName, Rule] = {
    "no_divergence": Rule(
        "A run diverged if its loss is non-finite, or ends above its initial value or above its value after warmup. "
        "Supported: the share of diverged runs is lower in Fisher's exact test at the 5% level, with at least three "
        "seeds at every rate.",
        no_divergence,
    ),
    "accuracy_higher": Rule(
        f"The accuracies {_PAIRED}, and at least one of the two models retrieves half of the needles at the training "
        "length.",
        accuracy_higher,
    ),
    "loss_rise_lower": Rule(
        f"The rises of the loss from {NEAR:g} to {FAR} times the training length {_PAIRED}.", loss_rise_lower
    ),
    "loss_lower": Rule(f"The validation losses {_PAIRED}.", loss_lower),
    "fewer_parameters": Rule(
        "Each Multiscreen is compared with a Transformer of the same loss and seed, interpolated between the trained "
        "sizes. The mean log ratios of the seeds differ from zero in a t-test at the 5% level, with at least three "
        "seeds. Sizes whose loss no trained Transformer reaches are left out.",
        fewer_parameters,
    ),
}
