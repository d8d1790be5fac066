"""Kinds of attention heads, decided from a head's means by fixed limits. No torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class HeadKind:
    """A head has this kind if the mean of `diagnostic` is defined and greater than `above`."""

    name: str
    meaning: str
    diagnostic: str
    above: float


KINDS = (
    HeadKind("sink", "more than half of the attention goes to the first key", "first_mass", 0.5),
    HeadKind(
        "previous token", "more than half of the attention goes to the token before the query", "previous_mass", 0.5
    ),
    HeadKind("own token", "more than half of the attention goes to the query's own token", "own_mass", 0.5),
    # Weights over 90% as many effective keys as visible ones are nearly indistinguishable from an average.
    HeadKind("uniform", "it averages: effective keys are more than 90% of the visible keys", "effective_share", 0.9),
    HeadKind(
        "threshold", "it accepts keys above a score threshold and can ignore all keys", "threshold_margin", -math.inf
    ),
)
# Only for heads of no other kind.
FOCUSED = HeadKind("focused", "the largest weight is more than one half on average", "largest_weight", 0.5)
MEANINGS = {kind.name: kind.meaning for kind in (*KINDS, FOCUSED)}


def head_kinds(values: Mapping[str, float | None]) -> tuple[str, ...]:
    """Names of the kinds that a head with these means has; usually one or none."""

    def holds(kind: HeadKind) -> bool:
        value = values.get(kind.diagnostic)
        return value is not None and value > kind.above

    kinds = tuple(kind.name for kind in KINDS if holds(kind))
    return kinds or ((FOCUSED.name,) if holds(FOCUSED) else ())
