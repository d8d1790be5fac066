"""The claims that the evidence decides, each by a rule stated beside it. Free of torch."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from keysift.sweep.groups import SEEDS, Difference, Group, Sample, Word, at_best

RULE = "by more than twice the standard error of the difference, with at least three seeds on each side"


@dataclass(frozen=True)
class Verdict:
    claim: str
    word: Word
    why: str


@dataclass(frozen=True)
class Page:
    """One page of docs/results: which study, what decides its claims, what a larger run would have to show."""

    key: str
    title: str
    study: str
    figure: str
    rule: str
    larger: str
    decide: Callable[[Sequence[Group]], list[Verdict]]


def missing(claim: str, what: str) -> Verdict:
    return Verdict(claim, "undecided", f"no record yet of {what}")


def _named(found: Sequence[Group], label: str) -> Group | None:
    return next((one for one in at_best(found) if one.label == label), None)


def retrieval(found: Sequence[Group]) -> list[Verdict]:
    ours, theirs = _named(found, "Multiscreen, open start"), _named(found, "Transformer")
    verdicts = []
    for setting, words in (("as trained", "as it was trained"), ("RoPE scaled", "with RoPE scaled to the length")):
        claim = f"At 16 times its training length a Multiscreen retrieves more than a Transformer {words}"
        high = ours.retrieved(16, "as trained") if ours else None
        low = theirs.retrieved(16, setting) if theirs else None
        if high is None or low is None:
            verdicts.append(missing(claim, "accuracy by length of both"))
            continue
        gap = Difference(high, low)
        verdicts.append(Verdict(claim, gap.word, f"{high.mean:.1%} against {low.mean:.1%}: {gap} in share of answers"))
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
    for setting, words in (("as trained", "as it was trained"), ("RoPE scaled", "with RoPE scaled to the length")):
        claim = (
            f"At eight times its training length the loss of a Multiscreen has risen less than a Transformer's {words}"
        )
        low, high = _rise(ours, "as trained"), _rise(theirs, setting)
        if low is None or high is None:
            verdicts.append(missing(claim, "loss by position of both"))
            continue
        gap = Difference(high, low)
        verdicts.append(Verdict(claim, gap.word, f"{low.mean:+.3f} against {high.mean:+.3f} nats: {gap}"))
    return verdicts


def _rise(group: Group | None, setting: str) -> Sample | None:
    """From half the training length, as trained, to eight times it."""
    near = group.at_position(0.5, "as trained") if group else None
    far = group.at_position(8, setting) if group else None
    if near is None or far is None:
        return None
    return Sample(tuple(b - a for a, b in zip(near.values, far.values, strict=True)))


def worse_without(found: Sequence[Group]) -> list[Verdict]:
    whole = _named(found, "Multiscreen")
    verdicts = []
    for part in ("RoPE", "no position", "no TanhNorm", "no gate", "r = 1"):
        claim = f"Screening is worse with {part}"
        other = _named(found, f"Multiscreen, {part}")
        if whole is None or other is None or whole.losses is None or other.losses is None:
            verdicts.append(missing(claim, "both"))
            continue
        gap = Difference(other.losses, whole.losses)
        verdicts.append(Verdict(claim, gap.word, f"{gap} nats"))
    return verdicts


def starts(found: Sequence[Group]) -> list[Verdict]:
    paper = _named(found, "Multiscreen")
    verdicts = []
    for other in ("open start", "spread start"):
        claim = f"An acceptance with an {other} ends lower than the paper's start (our own hypothesis)"
        ours = _named(found, f"Multiscreen, {other}")
        if paper is None or ours is None or paper.losses is None or ours.losses is None:
            verdicts.append(missing(claim.replace("an spread", "a spread"), "both"))
            continue
        gap = Difference(paper.losses, ours.losses)
        verdicts.append(Verdict(claim.replace("an spread", "a spread"), gap.word, f"{gap} nats"))
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


PAGES = (
    Page(
        key="e1-stability",
        title="E1: which learning rates train",
        study="stability",
        figure="rates",
        rule="a run diverged if its loss is not finite or ends above where the warm-up left it; reproduced if no run "
        "of Multiscreen diverged at any rate and some of the Transformer did, every rate with at least three seeds",
        larger="the same at 2^36 tokens, where norms have had time to grow, and rates in steps of two",
        decide=stability,
    ),
    Page(
        key="e2-one-hop",
        title="E2: one-hop recall beyond the training length",
        study="one-hop",
        figure="lengths",
        rule=f"the accuracies differ {RULE}",
        larger="the same on ABCDigits with models trained on text at 2^12 tokens, and at 32 and 64 times the length",
        decide=retrieval,
    ),
    Page(
        key="e2-one-hop-long",
        title="E2: one-hop recall beyond the training length, trained for longer",
        study="one-hop-long",
        figure="lengths",
        rule=f"the accuracies differ {RULE}",
        larger="the same on ABCDigits with models trained on text at 2^12 tokens, and at 32 and 64 times the length",
        decide=retrieval,
    ),
    Page(
        key="e3-positions",
        title="E3: loss by position beyond the training length",
        study="positions",
        figure="positions",
        rule=f"the rises differ {RULE}",
        larger="a loss that goes on falling with the past, which takes models that use a long past at all",
        decide=beyond,
    ),
    Page(
        key="e5-ablations",
        title="E5: screening without its parts, on text",
        study="ablation-text",
        figure="bars",
        rule=f"the losses differ {RULE}",
        larger="differences of 0.013 to 0.06 nats, as the paper reports them at 28M parameters and 2^36 tokens",
        decide=worse_without,
    ),
    Page(
        key="e6-scaling",
        title="E6: loss by parameters",
        study="scaling",
        figure="sizes",
        rule="at the loss of each Multiscreen that the Transformers' curve crosses, Multiscreen has fewer parameters "
        "at every one (reproduced) or at none (not reproduced); at least two sizes and three seeds everywhere",
        larger="curves of converged models: here every size has the same small budget of tokens",
        decide=fewer_parameters,
    ),
    Page(
        key="e7-start-text",
        title="E7: where the acceptance starts, on text",
        study="start-text",
        figure="bars",
        rule=f"the losses differ {RULE}",
        larger="that the difference stays when runs are ten times as long: an early lead is not a better model",
        decide=starts,
    ),
    Page(
        key="e7-start-recall",
        title="E7: where the acceptance starts, on one-hop recall",
        study="start-recall",
        figure="bars",
        rule=f"the losses differ {RULE}",
        larger="that the paper's start does not catch up with more tokens",
        decide=starts,
    ),
)
