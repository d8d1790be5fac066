"""The claims that the evidence decides, each by a rule stated beside it. Free of torch."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from keysift.sweep.groups import SEEDS, Difference, Group, Sample, Word, at_best

RULE = "at the 5% level of Welch's t-test over seeds, at least three on each side"


@dataclass(frozen=True)
class Verdict:
    claim: str
    word: Word
    why: str


def missing(claim: str, what: str) -> Verdict:
    return Verdict(claim, "undecided", f"no record yet of {what}")


def _named(found: Sequence[Group], label: str) -> Group | None:
    return next((one for one in at_best(found) if one.label == label), None)


LEARNED = 0.5  # share of needles at the training length; below it, what two models do beyond it says nothing
SETTINGS = {"as trained": "as it was trained", "RoPE scaled": "with RoPE scaled to the length"}


def retrieval(found: Sequence[Group], ratio: int = 16) -> list[Verdict]:
    ours, theirs = _named(found, "Multiscreen, open start"), _named(found, "Transformer")
    verdicts = []
    pairs = [("as trained", "as trained"), ("as trained", "RoPE scaled"), ("windows expanded", "RoPE scaled")]
    for mine, other in pairs if ratio > 1 else pairs[:1]:
        at = f"At {ratio} times its training length" if ratio > 1 else "At its training length"
        claim = (
            f"{at} a Multiscreen{' with expanded windows' * (mine != 'as trained')} retrieves more than a Transformer "
            f"{SETTINGS[other]}"
        )
        high = ours.retrieved(ratio, mine) if ours else None
        low = theirs.retrieved(ratio, other) if theirs else None
        if high is None or low is None:
            verdicts.append(missing(claim, "accuracy by length of both"))
            continue
        gap = Difference(high, low)
        why = f"{high.mean:.1%} against {low.mean:.1%}: {gap} in share of answers"
        near = [sample for one in (ours, theirs) if one and (sample := one.retrieved(1, "as trained"))]
        if near and all(sample.mean < LEARNED for sample in near):
            shares = " and ".join(f"{sample.mean:.0%}" for sample in near)
            why = f"neither has learned the task, {shares} at its training length; {why}"
            verdicts.append(Verdict(claim, "undecided", why))
        else:
            verdicts.append(Verdict(claim, gap.word, why))
    return verdicts


def stability(found: Sequence[Group]) -> list[Verdict]:
    verdicts = []
    for rival in ("Transformer", "Transformer, QK norm"):
        claim = f"A Multiscreen trains at every rate up to 2^0, and a {rival} does not"
        mine, other = ([one for one in found if one.label == label] for label in ("Multiscreen", rival))
        if not mine or not other:
            verdicts.append(missing(claim, "both"))
            continue
        thin = [one for one in (*mine, *other) if len(one.records) < SEEDS]
        ours, theirs = (sum(one.diverged for one in side) for side in (mine, other))
        why = (
            f"{ours} of {sum(len(one.records) for one in mine)} runs of Multiscreen diverged, {theirs} of "
            f"{sum(len(one.records) for one in other)} of the {rival}"
        )
        if thin:
            why += f"; {len(thin)} rates have fewer than {SEEDS} seeds"
        word: Word = "undecided" if thin else "reproduced at this scale" if not ours and theirs else "not reproduced"
        verdicts.append(Verdict(claim, word, why))
    return verdicts


def beyond(found: Sequence[Group]) -> list[Verdict]:
    ours, theirs = _named(found, "Multiscreen"), _named(found, "Transformer")
    verdicts = []
    for scaled, words in ((False, SETTINGS["as trained"]), (True, "with the best RoPE factor there")):
        claim = (
            f"From half its training length to eight times it the loss of a Multiscreen rises less than a "
            f"Transformer's {words}"
        )
        low, high = _rise(ours), _rise(theirs, scaled=scaled)
        if low is None or high is None:
            verdicts.append(missing(claim, "loss by position of both"))
            continue
        gap = Difference(high, low)
        verdicts.append(Verdict(claim, gap.word, f"{low.mean:+.3f} against {high.mean:+.3f} nats: {gap}"))
    return verdicts


def _rise(group: Group | None, *, scaled: bool = False) -> Sample | None:
    """From half the training length, as trained, to eight times it."""
    near = group.at_position(0.5, "as trained") if group else None
    if group is None or near is None:
        return None
    far = group.at_position_scaled(8) if scaled else group.at_position(8, "as trained")
    if far is None:
        return None
    return Sample(tuple(b - a for a, b in zip(near.values, far.values, strict=True)))


def worse_without(found: Sequence[Group], whole: str = "Multiscreen") -> list[Verdict]:
    """`whole` is the model that has every part. A fixed acceptance has no start, so its label does not tell one."""
    mine = _named(found, whole)
    verdicts = []
    for part in ("RoPE", "no position", "no TanhNorm", "no gate", "r = 1"):
        claim = f"Screening is worse with {part}"
        other = _named(found, f"{whole if part != 'r = 1' else 'Multiscreen'}, {part}")
        verdicts.append(_ends_above(claim, other, mine))
    return verdicts


def _ends_above(claim: str, high: Group | None, low: Group | None) -> Verdict:
    """Whether one contestant's validation loss is higher than another's."""
    if high is None or low is None or high.losses is None or low.losses is None:
        return missing(claim, "both")
    gap = Difference(high.losses, low.losses)
    return Verdict(claim, gap.word, f"{gap} nats")


STARTS = ("an open start", "a spread start")


def starts(found: Sequence[Group], others: Sequence[str] = STARTS) -> list[Verdict]:
    """Our own hypothesis, not the paper's."""
    paper = _named(found, "Multiscreen")
    verdicts = []
    for other in others:
        claim = f"An acceptance with {other} ends lower than the paper's start (our own hypothesis)"
        ours = _named(found, f"Multiscreen, {other.partition(' ')[2]}")
        verdicts.append(_ends_above(claim, paper, ours))
    return verdicts


def fewer_parameters(found: Sequence[Group]) -> list[Verdict]:
    claim = "A Multiscreen needs fewer parameters than a Transformer for the same loss (paper: 30% fewer)"
    best = sorted(at_best(found), key=lambda one: one.parameters)
    ours = [one for one in best if one.label == "Multiscreen"]
    theirs = [(one.parameters, one.losses.mean) for one in best if one.label == "Transformer" and one.losses]
    ratios = []
    for one in ours:
        assert one.losses is not None
        needed = _parameters_at(one.losses.mean, theirs)
        if needed is not None:
            ratios.append(one.parameters / needed)
    if not ratios:
        return [missing(claim, "a loss that both reach")]
    why = "Multiscreen has " + ", ".join(f"{ratio:.2f}" for ratio in ratios) + " times the Transformer's parameters"
    thin = any(one.losses is None or len(one.losses.values) < SEEDS for one in best)
    if thin or len(ratios) < 2:
        return [Verdict(claim, "undecided", f"{why}; fewer than two sizes, or fewer than {SEEDS} seeds somewhere")]
    word: Word = (
        "reproduced at this scale" if max(ratios) < 1 else "not reproduced" if min(ratios) >= 1 else "undecided"
    )
    return [Verdict(claim, word, why)]


def _parameters_at(loss: float, curve: list[tuple[int, float]]) -> float | None:
    """Where a falling curve reaches a loss, straight in the logarithm of the parameters; None outside of it."""
    for (small, high), (large, low) in itertools.pairwise(curve):
        if low <= loss <= high and high > low:
            share = (high - loss) / (high - low)
            return math.exp(math.log(small) + share * (math.log(large) - math.log(small)))
    return None
