"""Powers of ReLU over the length (arXiv:2309.08586v2).

    w = max(x, 0)^p / L,   p = 1 or 2

L is a constant (`relu`, `relu_squared`: each key is judged alone) or the keys the query sees (`relu_visible`).
Letters: B batch, H heads, T queries, S keys.
"""

from dataclasses import replace

import torch
from torch import Tensor

from keysift.mechanisms.rules import Counted, Pointwise
from keysift.mechanisms.spec import Mechanism, Per, Promise, Scalar, Site

_HOLDS = frozenset(
    {
        Promise.NONNEGATIVE,
        Promise.EXACT_ZERO,
        Promise.REFUSES_EXACTLY,
        Promise.REFUSES_IN_LIMIT,
        Promise.CAUSAL,
        Promise.SINGLE_PASS,
        Promise.BLOCKS_SKIPPABLE,
    }
)
_SCALE = {Promise.SCALE_INVARIANT: "homogeneous instead: degree p in the product of the two factors"}


def _context(site: Site, generator: torch.Generator | None) -> Tensor:
    return torch.tensor(site.context, dtype=torch.float64)


LENGTH = Scalar(
    name="length",
    meaning="the context length every weight is divided by",
    per=Per.HEAD,
    init=_context,
    above=0.0,
    learned=False,
    probes=(1.0, 4.0, 64.0),
)


def judge(x_BHTS: Tensor, distance_BHTS: Tensor, *, length: Tensor) -> Tensor:
    return torch.relu(x_BHTS) / length


def judge_squared(x_BHTS: Tensor, distance_BHTS: Tensor, *, length: Tensor) -> Tensor:
    return torch.relu(x_BHTS).square() / length


def judge_counted(x_BHTS: Tensor, distance_BHTS: Tensor, seen_BHT1: Tensor) -> Tensor:
    return torch.relu(x_BHTS) / seen_BHT1


RELU = Mechanism(
    name="relu",
    title="ReLU over L",
    source="arXiv:2309.08586v2",
    page="relu_power",
    formula="w = max(x, 0) / L, L the context length",
    rule=Pointwise(judge=judge),
    scalars=(LENGTH,),
    holds=_HOLDS | {Promise.ABSOLUTE, Promise.REFUSED_INERT},
    notes=_SCALE,
)

RELU_SQUARED = replace(
    RELU,
    name="relu_squared",
    title="ReLU^2 over L",
    formula="w = max(x, 0)^2 / L, L the context length",
    rule=Pointwise(judge=judge_squared),
)

RELU_VISIBLE = Mechanism(
    name="relu_visible",
    title="ReLU over L, L counted per row",
    source="arXiv:2309.08586v2",
    page="relu_power",
    formula="w = max(x, 0) / n, n the keys the query sees",
    rule=Counted(judge=judge_counted),
    holds=_HOLDS,
    notes=_SCALE | {Promise.REFUSED_INERT: "a refused key still counts in n"},
)
