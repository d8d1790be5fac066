"""Softmax with a sink: an additional term in the denominator that has no value.

    w = exp(x) / (exp(s) + sum exp(x))

softmax1: s = 0 (Miller, "Attention Is Off By One", 24 July 2023).
softmax_sink: s learned per head (gpt-oss, 5 August 2025).
The score scale does not apply to the sink logit.
"""

import math

from torch import Tensor

from keysift.mechanisms.rules import Softmax
from keysift.mechanisms.spec import Mechanism, Per, Promise, Scalar

_HOLDS = frozenset(
    {
        Promise.NONNEGATIVE,
        Promise.BOUNDED,
        Promise.HULL_WITH_ZERO,
        Promise.REFUSES_IN_LIMIT,
        Promise.CAUSAL,
        Promise.SINGLE_PASS,
    }
)
_NOTES = {
    Promise.SUMS_TO_ONE: "sums to sigmoid(logsumexp(x) - s)",
    Promise.SHIFT_INVARIANT: "holds only if the sink is shifted as well",
}


def fixed() -> float:
    return 0.0


def learned(*, sink: Tensor) -> Tensor:
    return sink


SOFTMAX1 = Mechanism(
    name="softmax1",
    title="Softmax with a fixed sink",
    source="E. Miller, Attention Is Off By One, 24 July 2023",
    page="sink",
    formula="w = exp(x) / (1 + sum exp(x))",
    rule=Softmax(sink=fixed),
    holds=_HOLDS,
    notes=_NOTES,
)

SOFTMAX_SINK = Mechanism(
    name="softmax_sink",
    title="Softmax with a learned sink",
    source="gpt-oss model card, 5 August 2025",
    page="sink",
    formula="w = exp(x) / (exp(s) + sum exp(x))",
    rule=Softmax(sink=learned),
    scalars=(
        Scalar(
            name="sink",
            meaning="the logit of the head's sink; minus infinity gives plain softmax",
            per=Per.HEAD,
            above=-math.inf,
            above_allowed=True,
            probes=(-2.0, 0.0, 3.0),
        ),
    ),
    holds=_HOLDS,
    notes=_NOTES,
)
