"""The rules that decide claims from the records of a study.

A rule takes a claim (evidence.study.Claim) and the groups of the study, and returns a Verdict. Rules about benchmarks
are in evidence.claims.latency. `corrected` applies Holm's correction to the primary claims of all studies.
"""

from collections.abc import Sequence
from dataclasses import replace

from evidence.claims.length_rules import FAR, NEAR, accuracy_higher, context_gain_higher, loss_rise_lower
from evidence.claims.paired import holm
from evidence.claims.training_rules import (
    RECALLED,
    fewer_parameters,
    fewer_tokens,
    loss_lower,
    no_divergence,
    order_predicted,
    sensitivity_lower,
)
from evidence.claims.verdict import PAIRED, Rule, Verdict
from evidence.study import RuleName

DECIDED = ("supported", "contradicted")  # words that rest on a p-value below 5%


def corrected(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Verdicts with the words of primary claims decided by Holm's adjusted p-values.

    Claims that no p-value has decided count with p = 1: those without records, unfinished, or not learned.
    """
    primary = [verdict for verdict in verdicts if verdict.claim.primary]
    ps = [v.comparison.p if v.comparison and v.word in DECIDED else 1.0 for v in primary]
    adjusted = dict(zip(map(id, primary), holm(ps), strict=True))
    results = []
    for verdict in verdicts:
        if verdict.claim.primary and verdict.word in DECIDED:
            assert verdict.comparison is not None
            verdict = replace(verdict, word=verdict.comparison.word(adjusted[id(verdict)]))
        results.append(verdict)
    return results


RULES: dict[RuleName, Rule] = {
    "no_divergence": Rule(
        "A run diverged if its loss is non-finite, or ends above its initial value or above its value after warmup. "
        "Supported: the share of diverged runs is lower in Fisher's exact test at the 5% level, with at least three "
        "seeds at every rate.",
        no_divergence,
    ),
    "accuracy_higher": Rule(
        f"The accuracies {PAIRED}, and at least one of the two models retrieves half of the needles at the training "
        "length.",
        accuracy_higher,
    ),
    "loss_rise_lower": Rule(
        f"The rises of the loss from {NEAR:g} to {FAR} times the training length {PAIRED}.", loss_rise_lower
    ),
    "loss_lower": Rule(f"The validation losses {PAIRED}.", loss_lower),
    "fewer_parameters": Rule(
        "Each Multiscreen is compared with a Transformer of the same loss and seed, interpolated between the trained "
        "sizes. The mean log ratios of the seeds differ from zero in a t-test at the 5% level, with at least three "
        "seeds. Sizes whose loss no trained Transformer reaches are left out.",
        fewer_parameters,
    ),
    "context_gain_higher": Rule(
        f"The same tokens are read with all of the context and with the context cut to the training length. The gains, "
        f"loss with the cut context minus loss with all of it, {PAIRED}.",
        context_gain_higher,
    ),
    "fewer_tokens": Rule(
        f"The logarithms of the tokens until {RECALLED:.0%} of the validation rows are answered {PAIRED}. Runs that "
        "end below count with all their tokens.",
        fewer_tokens,
    ),
    "order_predicted": Rule(
        "For each seed, the rank correlation over models of the share of random keys that the initial acceptance "
        "accepts with the tokens needed. Its mean differs from zero in a t-test over seeds at the 5% level.",
        order_predicted,
    ),
    "sensitivity_lower": Rule(
        f"Sensitivity is the mean over learning rates of the final validation loss above that of the best rate, at "
        f"most log 256 nats each; non-finite losses count as log 256. The sensitivities {PAIRED}.",
        sensitivity_lower,
    ),
}
