"""The rules that decide claims from the records of a study.

A rule takes a claim (evidence.study.Claim) and the groups of the study, and returns a Verdict. Rules about benchmarks
are in evidence.latency.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evidence.groups import SeedGroup, best_groups, find_best
from evidence.study import Claim, RuleName
from evidence.welch import MIN_SEEDS, Difference, Word
from keysift.core.statistics import Sample

LEARNED = 0.5  # accuracy at the training length below which a model has not learned the task
NEAR, FAR = 0.5, 8  # contexts between which the rise of the loss is taken, in training lengths
BEST_ROPE = "best RoPE factor"
_WELCH = "differ in Welch's t-test over seeds at the 5% level, with at least three seeds per model"


@dataclass(frozen=True)
class Verdict:
    """`why` gives the numbers in a sentence; `effect` and `n` are the cells of the table of claims."""

    claim: str
    word: Word
    why: str
    effect: str = ""
    n: str = ""


@dataclass(frozen=True)
class Rule:
    statement: str
    decide: Callable[[Claim, Sequence[SeedGroup]], Verdict]


def missing(claim: Claim, what: str) -> Verdict:
    return Verdict(claim.text, "undecided", f"no record of {what} yet")


def no_divergence(claim: Claim, groups: Sequence[SeedGroup]) -> Verdict:
    ours, theirs = ([group for group in groups if group.label == name] for name in (claim.ours, claim.theirs))
    if not ours or not theirs:
        return missing(claim, "both models")
    diverged, total = zip(*((sum(g.diverged for g in side), _runs(side)) for side in (ours, theirs)), strict=True)
    effect = f"{diverged[0]} of {total[0]} {claim.ours} runs diverged, {diverged[1]} of {total[1]} {claim.theirs} runs"
    seeds = min(len(group.records) for group in (*ours, *theirs))
    if seeds < MIN_SEEDS:
        thin = sum(len(group.records) < MIN_SEEDS for group in (*ours, *theirs))
        why = f"{effect}; {thin} rates have fewer than {MIN_SEEDS} seeds"
        return Verdict(claim.text, "undecided", why, effect, str(seeds))
    word: Word = "reproduced at this scale" if not diverged[0] and diverged[1] else "not reproduced"
    return Verdict(claim.text, word, effect, effect, str(seeds))


def _runs(groups: Sequence[SeedGroup]) -> int:
    return sum(len(group.records) for group in groups)


def accuracy_higher(claim: Claim, groups: Sequence[SeedGroup]) -> Verdict:
    ours, theirs = find_best(groups, claim.ours), find_best(groups, claim.theirs)
    high = ours.accuracy_at(claim.length, claim.our_setting) if ours else None
    low = theirs.accuracy_at(claim.length, claim.their_setting) if theirs else None
    if high is None or low is None:
        return missing(claim, "the accuracy by length of both models")
    gap = Difference(high, low)
    why = f"{high.mean:.1%} against {low.mean:.1%}, a difference of {gap} in the share of correct answers"
    trained = [accuracy for g in (ours, theirs) if g and (accuracy := g.accuracy_at(1, "as trained"))]
    word, effect = gap.word, f"accuracy {gap.interval}"
    if trained and all(accuracy.mean < LEARNED for accuracy in trained):
        shares = " and ".join(f"{accuracy.mean:.0%}" for accuracy in trained)
        word, why = "undecided", f"neither model has learned the task ({shares} at the training length); {why}"
        effect = f"{effect}, task not learned"
    return Verdict(claim.text, word, why, effect, str(gap.seeds))


def loss_rise_lower(claim: Claim, groups: Sequence[SeedGroup]) -> Verdict:
    low = _rise(find_best(groups, claim.ours), claim.our_setting)
    high = _rise(find_best(groups, claim.theirs), claim.their_setting)
    if low is None or high is None:
        return missing(claim, "the loss by position of both models")
    gap = Difference(high, low)
    why = f"a rise of {low.mean:+.3f} against {high.mean:+.3f} nats, a difference of {gap}"
    return Verdict(
        claim.text,
        gap.word,
        why,
        f"rise of {claim.theirs} minus rise of {claim.ours} {gap.interval} nats",
        str(gap.seeds),
    )


def _rise(group: SeedGroup | None, setting: str) -> Sample | None:
    """Loss at FAR in a setting minus loss at NEAR as trained, for each seed."""
    near = group.loss_at(NEAR, "as trained") if group else None
    if group is None or near is None:
        return None
    far = group.loss_at_best_rope(FAR) if setting == BEST_ROPE else group.loss_at(FAR, setting)
    if far is None:
        return None
    return Sample(values=tuple(b - a for a, b in zip(near.values, far.values, strict=True)))


def loss_lower(claim: Claim, groups: Sequence[SeedGroup]) -> Verdict:
    low, high = find_best(groups, claim.ours), find_best(groups, claim.theirs)
    if high is None or low is None or high.losses is None or low.losses is None:
        return missing(claim, "both models")
    gap = Difference(high.losses, low.losses)
    return Verdict(
        claim.text,
        gap.word,
        f"loss of {claim.theirs} minus loss of {claim.ours}: {gap} nats",
        f"loss {gap.interval} nats",
        str(gap.seeds),
    )


def fewer_parameters(claim: Claim, groups: Sequence[SeedGroup]) -> Verdict:
    best = sorted(best_groups(groups), key=lambda group: group.parameters)
    curve = [(group.parameters, group.losses.mean) for group in best if group.label == claim.theirs and group.losses]
    ratios = []
    for group in best:
        if group.label == claim.ours and group.losses is not None:
            needed = _parameters_at(group.losses.mean, curve)
            if needed is not None:
                ratios.append(group.parameters / needed)
    if not ratios:
        return missing(claim, "a loss that both models reach")
    effect = f"{', '.join(f'{ratio:.2f}' for ratio in ratios)} times the {claim.theirs}'s parameters"
    why, seeds = f"{claim.ours} has {effect}", min(len(group.losses) for group in best if group.losses)
    if seeds < MIN_SEEDS or len(ratios) < 2:
        why = f"{why}; there are fewer than two sizes, or fewer than {MIN_SEEDS} seeds at some point"
        return Verdict(claim.text, "undecided", why, effect, str(seeds))
    word: Word = (
        "reproduced at this scale" if max(ratios) < 1 else "not reproduced" if min(ratios) >= 1 else "undecided"
    )
    return Verdict(claim.text, word, why, effect, str(seeds))


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
        "Reproduced: no Multiscreen run diverged at any rate, and some run of the other model did. Every rate needs "
        "at least three seeds.",
        no_divergence,
    ),
    "accuracy_higher": Rule(
        f"The accuracies {_WELCH}, and at least one of the two models retrieves half of the needles at the training "
        "length.",
        accuracy_higher,
    ),
    "loss_rise_lower": Rule(
        f"The rises of the loss from {NEAR:g} to {FAR} times the training length {_WELCH}.", loss_rise_lower
    ),
    "loss_lower": Rule(f"The validation losses {_WELCH}.", loss_lower),
    "fewer_parameters": Rule(
        "Each Multiscreen is compared with a Transformer of the same loss, interpolated between the trained sizes. "
        "Reproduced: Multiscreen always has fewer parameters. Not reproduced: it never has. This needs at least two "
        "sizes and three seeds per size.",
        fewer_parameters,
    ),
}
