"""The pages of docs/results that follow from records: which study each shows, and what decides its claims."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from keysift.sweep.claims import (
    RULE,
    STARTS,
    Verdict,
    beyond,
    fewer_parameters,
    retrieval,
    stability,
    starts,
    worse_without,
)
from keysift.sweep.groups import Group

ACCURACIES = f"the accuracies differ {RULE}, and one of the two finds half the needles at its training length"


@dataclass(frozen=True)
class Page:
    """One page: which study, what decides its claims, what a larger run would have to show."""

    key: str
    title: str
    study: str
    figure: str
    rule: str
    larger: str
    decide: Callable[[Sequence[Group]], list[Verdict]]


PAGES = (
    Page(
        key="e1-stability",
        title="E1: which learning rates train",
        study="stability",
        figure="rates",
        rule="a run diverged if its loss is not finite, or ends above where it began or where the warm-up left it; "
        "reproduced if no run of Multiscreen diverged at any rate and some of the Transformer did, every rate with at "
        "least three seeds",
        larger="the same at 2^36 tokens, where norms have had time to grow, and rates in steps of two",
        decide=stability,
    ),
    Page(
        key="e2-one-hop",
        title="E2: one-hop recall beyond the training length",
        study="one-hop",
        figure="lengths",
        rule=ACCURACIES,
        larger="the same on ABCDigits with models trained on text at 2^12 tokens, and at 32 and 64 times the length",
        decide=retrieval,
    ),
    Page(
        key="e2-one-hop-long",
        title="E2: one-hop recall beyond the training length, trained for longer",
        study="one-hop-long",
        figure="lengths",
        rule=ACCURACIES,
        larger="the same on ABCDigits with models trained on text at 2^12 tokens, and at 32 and 64 times the length",
        decide=retrieval,
    ),
    Page(
        key="e2-two-hop",
        title="E2: two-hop recall beyond the training length",
        study="two-hop",
        figure="lengths",
        rule=ACCURACIES,
        larger="the same with 26 letters, for models that are equal in size and each at the best of several rates",
        decide=partial(retrieval, ratio=4),
    ),
    Page(
        key="e2-abcdigits",
        title="E2: ABCDigits, a small attempt",
        study="abcdigits",
        figure="lengths",
        rule=f"{ACCURACIES}; a number counts if all its digits are right",
        larger="models that have learned the task at all: the paper's are trained on 2^38 tokens of text",
        decide=partial(retrieval, ratio=1),
    ),
    Page(
        key="e3-positions",
        title="E3: loss by position beyond the training length",
        study="positions",
        figure="positions",
        rule=f"the rises differ {RULE}",
        larger="a loss that keeps falling with the past, which takes models that use a long past at all",
        decide=beyond,
    ),
    Page(
        key="e5-ablations",
        title="E5: screening without its parts, on text",
        study="ablation-text",
        figure="bars",
        rule=f"the losses differ {RULE}",
        larger="differences of 0.013 to 0.06 nats, as the paper reports them at 28M parameters and 2^36 tokens, and a "
        "model without gates of the same size: here it has a quarter fewer parameters",
        decide=worse_without,
    ),
    Page(
        key="e5-ablations-recall",
        title="E5: screening without its parts, on one-hop recall",
        study="ablation-recall",
        figure="bars",
        rule=f"the losses differ {RULE}",
        larger="every part at its own best rate, and what each does beyond the training length",
        decide=partial(worse_without, whole="Multiscreen, open start"),
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
        key="e7-start-text-long",
        title="E7: where the acceptance starts, on text, trained for longer",
        study="start-text-long",
        figure="bars",
        rule=f"the losses differ {RULE}",
        larger="the same at a size and a budget where the loss has stopped falling",
        decide=partial(starts, others=STARTS[:1]),
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
