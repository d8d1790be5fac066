"""Rules about training: divergence, final loss, tokens and parameters for the same result, sensitivity to the rate."""

import itertools
import math
import statistics
from collections.abc import Sequence

from scipy import stats

from evidence.claims.groups import SeedGroup, SeedSample, best_groups, by_seed, find_best
from evidence.claims.paired import ALPHA, MIN_SEEDS, Comparison, Word
from evidence.claims.verdict import Verdict, compare, missing
from evidence.study import Claim

RECALLED = 0.95  # accuracy on validation rows that `fewer_tokens` waits for
MOST_EXCESS = math.log(256)  # nats; the cap of the excess loss at one rate


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


def loss_lower(claim: Claim, groups: Sequence[SeedGroup]) -> Verdict:
    low, high = find_best(groups, claim.ours), find_best(groups, claim.theirs)
    if high is None or low is None or high.losses is None or low.losses is None:
        return missing(claim, "both models")
    why = f"loss {low.losses.mean:.4f} of {claim.ours} against {high.losses.mean:.4f} of {claim.theirs}"
    return compare(claim, high.losses, low.losses, why, "loss {} nats")


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


def fewer_tokens(claim: Claim, groups: Sequence[SeedGroup]) -> Verdict:
    """Compares the logarithms of the tokens. A run that never recalls enough counts with all its tokens."""
    ours, theirs = find_best(groups, claim.ours), find_best(groups, claim.theirs)
    few = ours.tokens_until(RECALLED) if ours else None
    many = theirs.tokens_until(RECALLED) if theirs else None
    if ours is None or theirs is None or few is None or many is None:
        return missing(claim, "the accuracy by step of both models")
    logs = [SeedSample(values=tuple(map(math.log, tokens.values)), seeds=tokens.seeds) for tokens in (few, many)]
    comparison = Comparison(logs[1].minus(logs[0]), claim.margin)
    if not comparison.n:
        return missing(claim, "a seed that both models have")
    never = " and ".join(f"{group.never_reached(RECALLED)} of {len(group.records)}" for group in (ours, theirs))
    why = (
        f"{few.mean / 1e6:.2f}M against {many.mean / 1e6:.2f}M tokens on average; {never} runs end below "
        f"{RECALLED:.0%} and count with all their tokens"
    )
    effect = f"{_factor(comparison)} times as many tokens with {claim.theirs}"
    return Verdict(claim, comparison.word(comparison.p), why, effect, str(comparison.n), comparison)


def _factor(comparison: Comparison) -> str:
    """The mean of logarithms as a factor, with its interval."""
    bounds = comparison.bounds()
    spread = "" if bounds is None else f" ({math.exp(bounds[0]):.2f} to {math.exp(bounds[1]):.2f})"
    return f"{math.exp(comparison.mean):.2f}{spread}"


def order_predicted(claim: Claim, groups: Sequence[SeedGroup]) -> Verdict:
    """Rank correlation, over models and for each seed, of the share of random keys accepted and the tokens needed."""
    measured = [(group, tokens) for group in best_groups(groups) if (tokens := group.tokens_until(RECALLED))]
    seeds = sorted(set.intersection(*(set(tokens.seeds) for _, tokens in measured))) if len(measured) > 2 else []
    if not seeds:
        return missing(claim, "the accuracy by step of three models")
    correlations = []
    for seed in seeds:
        shares = [group.accepted_at_random for group, _ in measured]
        needed = [tokens.values[tokens.seeds.index(seed)] for _, tokens in measured]
        correlations.append(-float(stats.spearmanr(shares, needed).statistic))
    comparison = Comparison(tuple(correlations), claim.margin)
    why = f"rank correlation {-comparison.mean:+.2f} over {len(measured)} models; the theory predicts -1"
    effect = f"rank correlation, negated: {comparison.interval}"
    return Verdict(claim, comparison.word(comparison.p), why, effect, str(comparison.n), comparison)


def sensitivity_lower(claim: Claim, groups: Sequence[SeedGroup]) -> Verdict:
    """Sensitivity of a seed: the mean over rates of the loss above that of the best rate, at most MOST_EXCESS each."""
    low, high = (sensitivity([g for g in groups if g.label == name]) for name in (claim.ours, claim.theirs))
    if low is None or high is None:
        return missing(claim, "both models at the same rates")
    why = f"{low.mean:.3f} against {high.mean:.3f} nats above the best rate, mean over rates"
    return compare(claim, high, low, why, "sensitivity {} nats")


def sensitivity(groups: Sequence[SeedGroup]) -> SeedSample | None:
    """Sensitivity of one model by seed, over the seeds that have a record at every rate."""
    if len(groups) < 2:
        return None
    losses = [{record.seed: _final_loss(record.val_loss) for record in group.records} for group in groups]
    seeds = sorted(set.intersection(*map(set, losses)))
    return by_seed((seed, _mean_excess([rate[seed] for rate in losses])) for seed in seeds)


def _final_loss(loss: float | None) -> float:
    return math.inf if loss is None or not math.isfinite(loss) else loss


def _mean_excess(losses: Sequence[float]) -> float | None:
    best = min(losses)
    return statistics.mean(min(loss - best, MOST_EXCESS) for loss in losses) if math.isfinite(best) else None
