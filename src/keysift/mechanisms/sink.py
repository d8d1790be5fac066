"""Softmax with a sink: an additional term in the denominator that has no value.

    w = exp(x) / (exp(s) + sum exp(x))

softmax1: s = 0 (Miller, "Attention Is Off By One", 24 July 2023).
softmax_sink: s learned per head (gpt-oss, 5 August 2025).
null_value: s from the query's token, and a learned value u of the sink (torch's add_bias_kv, arXiv:2402.17762).

    o = sum w v + (1 - sum w) u

The score scale does not apply to the sink logit.
"""

import math

import torch
from torch import Tensor

from keysift.mechanisms.rules import Softmax
from keysift.mechanisms.spec import Mechanism, Per, Promise, Scalar, Site

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


def of_query(*, null_logit: Tensor) -> Tensor:
    return null_logit


def _zeros(site: Site, generator: torch.Generator | None) -> Tensor:
    return torch.zeros(site.heads, site.value_width, dtype=torch.float64)


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

NULL_VALUE = Mechanism(
    name="null_value",
    title="Softmax with a null key and value",
    source="torch.nn.MultiheadAttention (add_bias_kv); arXiv:2402.17762",
    page="sink",
    formula="w = exp(x) / (exp(s) + sum exp(x)); output sum w v + (1 - sum w) u",
    rule=Softmax(sink=of_query),
    rest_value="null_value",
    scalars=(
        Scalar(
            name="null_logit",
            meaning="the query's score with the null key, scale included",
            per=Per.QUERY,
            bias=True,
            probes=(-2.0, 0.7, 3.0),
        ),
        Scalar(
            name="null_value",
            meaning="the value of the null key",
            per=Per.HEAD_CHANNEL,
            init=_zeros,
            probes=(0.0, 0.8),
        ),
    ),
    holds=_HOLDS - {Promise.HULL_WITH_ZERO},
    notes=_NOTES
    | {
        Promise.HULL_WITH_ZERO: "the hull of the values and the null value",
        Promise.REFUSES_IN_LIMIT: "with a null value of zero; otherwise the output tends to the null value",
    },
)
