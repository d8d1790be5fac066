"""Sigmoid attention: every key weighed by its own logistic (arXiv:2409.04431v2).

    w = sigmoid(x + b),   b = -log n

n is the context length as a constant (`sigmoid`: each key is judged alone) or the number of keys the query sees
(`sigmoid_visible`: the size of the output keeps steady, but every key's weight moves with every other key's presence).
Letters: B batch, H heads, T queries, S keys.
"""

import math

import torch
from torch import Tensor

from keysift.mechanisms.spec import Mechanism, Per, Promise, Rows, Scalar

_HOLDS = frozenset(
    {Promise.NONNEGATIVE, Promise.BOUNDED, Promise.REFUSES_IN_LIMIT, Promise.CAUSAL, Promise.SINGLE_PASS}
)


def weigh(x_BHTS: Tensor, rows: Rows, *, bias: Tensor) -> Tensor:
    return torch.where(rows.keep_BHTS, torch.sigmoid(x_BHTS + bias), 0.0)


def weigh_visible(x_BHTS: Tensor, rows: Rows) -> Tensor:
    return weigh(x_BHTS, rows, bias=-rows.seen_BHT1.clamp_min(1).to(x_BHTS.dtype).log())


SIGMOID = Mechanism(
    name="sigmoid",
    title="Sigmoid",
    source="arXiv:2409.04431v2",
    page="sigmoid",
    formula="w = sigmoid(x - log n), n the context length",
    weigh=weigh,
    scalars=(
        Scalar(
            name="bias",
            meaning="what is added to every score: minus the logarithm of the context length",
            per=Per.HEAD,
            init=lambda site, generator: torch.tensor(-math.log(site.context), dtype=torch.float64),
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
    weigh=weigh_visible,
    holds=_HOLDS,
    notes={Promise.ABSOLUTE: "every key that comes raises n and lowers all weights"},
)
