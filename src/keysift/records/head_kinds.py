"""Kinds of attention heads, decided from a head's means by fixed limits. No torch.

A kind has a *score*, one of the head's diagnostics, and a *limit* that the score must exceed. `head_kinds` gives the
kinds of a head; `closest` names the head that comes nearest to a kind, also if it has not got it.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

Values = Mapping[str, float | None]


@dataclass(frozen=True)
class HeadKind:
    """A head has this kind if its `score` exceeds `limit` and its diagnostics in `below` are less than their limits."""

    name: str
    meaning: str
    score: str
    limit: float
    below: tuple[tuple[str, float], ...] = ()

    def fits(self, values: Values) -> bool:
        score = values.get(self.score)
        if score is None or not score > self.limit:
            return False
        return all((value := values.get(name)) is not None and value < limit for name, limit in self.below)


NO_OP = HeadKind(
    "no-op sink",
    "more than half of the attention goes to the first token, whose value is less than half as long as the others: "
    "the head writes little",
    "first_mass",
    0.5,
    (("first_value_norm", 0.5),),
)
BROADCAST = HeadKind(
    "broadcast sink",
    "more than half of the attention goes to the first token, and the head writes nearly the same vector everywhere",
    "first_mass",
    0.5,
    (("output_rank", 1.5),),
)
SINK = HeadKind("sink", "more than half of the attention goes to the first token", "first_mass", 0.5)
SINKS = (NO_OP, BROADCAST, SINK)  # a head has the first that fits

KINDS = (
    HeadKind(
        "previous token", "more than 40% of the attention goes to the token before the query", "previous_mass", 0.4
    ),
    HeadKind(
        "duplicate token",
        "on a repeated random sequence, more than 30% of the attention goes to the earlier copy of the query's token",
        "duplicate_mass",
        0.3,
    ),
    HeadKind(
        "induction",
        "on a repeated random sequence, more than 30% of the attention goes to the token after the earlier copy: the "
        "head finds what came next",
        "induction_mass",
        0.3,
    ),
    HeadKind("own token", "more than half of the attention goes to the query's own token", "own_mass", 0.5),
    # Weights over 90% as many effective keys as visible ones are nearly indistinguishable from an average.
    HeadKind(
        "uniform", "the head averages: effective keys are more than 90% of the visible keys", "effective_share", 0.9
    ),
    HeadKind(
        "threshold",
        "the head accepts keys above a score threshold and can refuse all keys",
        "threshold_margin",
        -math.inf,
    ),
)
# Only for heads of no other kind.
FOCUSED = HeadKind("focused", "the largest weight is more than one half on average", "largest_weight", 0.5)
ALL_KINDS = (*SINKS, *KINDS, FOCUSED)
MEANINGS = {kind.name: kind.meaning for kind in ALL_KINDS}


def head_kinds(values: Values) -> tuple[str, ...]:
    """Names of the kinds that a head with these means has; usually one or none."""
    sink = next((kind.name for kind in SINKS if kind.fits(values)), None)
    kinds = (*(() if sink is None else (sink,)), *(kind.name for kind in KINDS if kind.fits(values)))
    return kinds or ((FOCUSED.name,) if FOCUSED.fits(values) else ())


class HasValues(Protocol):
    @property
    def values(self) -> Values: ...


H = TypeVar("H", bound=HasValues)


def closest(heads: Iterable[H], kind: HeadKind) -> tuple[H, float] | None:
    """The head with the largest score of a kind, and that score."""
    scored = [(value, head) for head in heads if (value := head.values.get(kind.score)) is not None]
    if not scored:
        return None
    value, head = max(scored, key=lambda pair: pair[0])
    return head, value
