"""Sigmoid attention: every key weighed by its own logistic (arXiv:2409.04431v2).

    w = sigmoid(x + b),   b = -log n

n is the context length as a constant (`sigmoid`: each key is judged alone) or the number of keys the query sees
(`sigmoid_visible`: the size of the output keeps steady, but every key's weight moves with every other key's presence).
Letters: B batch, H heads, T queries, S keys.
"""

import math

import torch
from torch import Tensor

from keysift.mechanisms.rules import Counted, Pointwise
from keysift.mechanisms.spec import Mechanism, Per, Promise, Scalar, Site

_HOLDS = frozenset(
    {Promise.NONNEGATIVE, Promise.BOUNDED, Promise.REFUSES_IN_LIMIT, Promise.CAUSAL, Promise.SINGLE_PASS}
)


def judge(x_BHTS: Tensor, distance_BHTS: Tensor, *, bias: Tensor) -> Tensor:
    return torch.sigmoid(x_BHTS + bias)


def judge_counted(x_BHTS: Tensor, distance_BHTS: Tensor, seen_BHT1: Tensor) -> Tensor:
    return torch.sigmoid(x_BHTS - seen_BHT1.log())


def _minus_log_context(site: Site, generator: torch.Generator | None) -> Tensor:
    return torch.tensor(-math.log(site.context), dtype=torch.float64)


SIGMOID = Mechanism(
    name="sigmoid",
    title="Sigmoid",
    source="arXiv:2409.04431v2",
    page="sigmoid",
    formula="w = sigmoid(x - log n), n the context length",
    rule=Pointwise(judge=judge),
    scalars=(
        Scalar(
            name="bias",
            meaning="what is added to every score: minus the logarithm of the context length",
            per=Per.HEAD,
            init=_minus_log_context,
            learned=False,
            probes=(-4.0, -1.4, 0.0),
        ),
    ),
    holds=_HOLDS | {Promise.ABSOLUTE},
)

SIGMOID_VISIBLE = Mechanism(
    name="sigmoid_visible",
    title="Sigmoid, n counted per row",
    source="arXiv:2409.04431v2",
    page="sigmoid",
    formula="w = sigmoid(x - log n), n the keys the query sees",
    rule=Counted(judge=judge_counted),
    holds=_HOLDS,
    notes={Promise.ABSOLUTE: "every key that comes raises n and lowers all weights"},
)
