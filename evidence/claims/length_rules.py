"""Rules about texts longer than the training length: accuracy, rise of the loss, gain from the context."""

from collections.abc import Sequence
from dataclasses import replace

from evidence.claims.groups import SeedGroup, SeedSample, find_best
from evidence.claims.verdict import Verdict, compare, missing
from evidence.study import Claim

LEARNED = 0.5  # accuracy at the training length below which a model has not learned the task
NEAR, FAR = 0.5, 8  # contexts between which the rise of the loss is taken, in training lengths
BEST_ROPE = "best RoPE factor"


def accuracy_higher(claim: Claim, groups: Sequence[SeedGroup]) -> Verdict:
    ours, theirs = find_best(groups, claim.ours), find_best(groups, claim.theirs)
    high = ours.accuracy_at(claim.length, claim.our_setting) if ours else None
    low = theirs.accuracy_at(claim.length, claim.their_setting) if theirs else None
    if high is None or low is None:
        return missing(claim, "the accuracy by length of both models")
    why = f"{high.mean:.1%} against {low.mean:.1%} of the answers are correct"
    trained = [accuracy for g in (ours, theirs) if g and (accuracy := g.accuracy_at(1, "as trained"))]
    verdict = compare(claim, high, low, why, "accuracy {}")
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
    return compare(claim, high, low, why, f"rise of {claim.theirs} minus rise of {claim.ours} {{}} nats")


def _rise(group: SeedGroup | None, setting: str) -> SeedSample | None:
    """Loss at FAR in a setting minus loss at NEAR as trained, for each seed."""
    near = group.loss_at(NEAR, "as trained") if group else None
    if group is None or near is None:
        return None
    far = group.loss_at_best_rope(FAR) if setting == BEST_ROPE else group.loss_at(FAR, setting)
    if far is None:
        return None
    return SeedSample(values=far.minus(near), seeds=tuple(sorted(set(far.seeds) & set(near.seeds))))


def context_gain_higher(claim: Claim, groups: Sequence[SeedGroup]) -> Verdict:
    """Gain: the loss with the context cut to the training length minus the loss of the same tokens with all of it."""
    ours, theirs = find_best(groups, claim.ours), find_best(groups, claim.theirs)
    high = ours.context_gain_at(claim.length, claim.our_setting) if ours else None
    low = theirs.context_gain_at(claim.length, claim.their_setting) if theirs else None
    if high is None or low is None:
        return missing(claim, "the gain from the context of both models")
    why = f"the context beyond the training length changes the loss by {-high.mean:+.3f} against {-low.mean:+.3f} nats"
    return compare(claim, high, low, why, "gain {} nats")
