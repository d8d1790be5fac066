"""Sigmoid attention: the weight of a key is the sigmoid of its score (arXiv:2409.04431v2).

    w = sigmoid(x + b),   b = -log n

`sigmoid` is pointwise: n is the context length, a constant. In `sigmoid_visible`, n is the number of visible keys. This
keeps the sum of the weights from growing with n, but every weight then depends on the number of competing keys.
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


def weigh_key(x_BHTS: Tensor, distance_BHTS: Tensor, *, bias: Tensor) -> Tensor:
    return torch.sigmoid(x_BHTS + bias)


def weigh_counted(x_BHTS: Tensor, distance_BHTS: Tensor, count_BHT1: Tensor) -> Tensor:
    return torch.sigmoid(x_BHTS - count_BHT1.log())


def _minus_log_context(site: Site, generator: torch.Generator | None) -> Tensor:
    return torch.tensor(-math.log(site.context), dtype=torch.float64)


SIGMOID = Mechanism(
    name="sigmoid",
    title="Sigmoid",
    source="arXiv:2409.04431v2",
    page="sigmoid",
    formula="w = sigmoid(x - log n), n the context length",
    rule=Pointwise(weigh_key=weigh_key),
    scalars=(
        Scalar(
            name="bias",
            meaning="added to every score: minus the logarithm of the context length",
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
    formula="w = sigmoid(x - log n), n the number of visible keys",
    rule=Counted(weigh_key=weigh_counted),
    holds=_HOLDS,
    notes={Promise.ABSOLUTE: "every additional key raises n and lowers all weights"},
)
