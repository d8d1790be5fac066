"""ReLU attention: powers of ReLU, divided by a length (arXiv:2309.08586v2), and ReLA (arXiv:2104.07012v2).

    w = max(x, 0)^p / L,   p = 1 or 2

L is the context length, a constant (`relu` and `relu_squared`, both pointwise), or the number of visible keys
(`relu_visible`).

    rela   o = max(x, 0) v
           y = gain * o / sqrt(mean o^2 + eps) * sigmoid(gate * o)    mean over heads and channels of the position

The weights of ReLA are pointwise. The norm is not: it couples all heads and removes most of the output's scale.
Letters: B batch, H heads, T queries, S keys, V value width.
"""

from dataclasses import replace

import torch
from torch import Tensor

from keysift.mechanisms import parts
from keysift.mechanisms.rules import Counted, Pointwise
from keysift.mechanisms.spec import Mechanism, Per, Promise, Scalar, Site

_EPS = 1e-8  # the value of the authors' code; it matters at initialisation, where scores are small
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
_NOTES = {Promise.SCALE_INVARIANT: "factors a on queries and b on keys multiply every weight by (a b)^p"}


def _context(site: Site, generator: torch.Generator | None) -> Tensor:
    return torch.tensor(site.context, dtype=torch.float64)


LENGTH = Scalar(
    name="length",
    meaning="the context length, which divides every weight",
    per=Per.HEAD,
    init=_context,
    above=0.0,
    learned=False,
    probes=(1.0, 4.0, 64.0),
)


def weigh_relu(x_BHTS: Tensor, distance_BHTS: Tensor, *, length: Tensor) -> Tensor:
    return torch.relu(x_BHTS) / length


def weigh_relu_squared(x_BHTS: Tensor, distance_BHTS: Tensor, *, length: Tensor) -> Tensor:
    return torch.relu(x_BHTS).square() / length


def weigh_relu_visible(x_BHTS: Tensor, distance_BHTS: Tensor, count_BHT1: Tensor) -> Tensor:
    return torch.relu(x_BHTS) / count_BHT1


def _ones(site: Site, generator: torch.Generator | None) -> Tensor:
    return torch.ones(site.heads, site.value_width, dtype=torch.float64)


def _zeros(site: Site, generator: torch.Generator | None) -> Tensor:
    return torch.zeros(site.heads, site.value_width, dtype=torch.float64)


def weigh_rela(x_BHTS: Tensor, distance_BHTS: Tensor) -> Tensor:
    return torch.relu(x_BHTS)


def finish_rela(out_BHTV: Tensor, *, gain: Tensor, gate: Tensor) -> Tensor:
    return gain * parts.rms_norm(out_BHTV, (1, 3), _EPS) * torch.sigmoid(gate * out_BHTV)


RELU = Mechanism(
    name="relu",
    title="ReLU over L",
    source="arXiv:2309.08586v2",
    page="relu_power",
    formula="w = max(x, 0) / L, L the context length",
    rule=Pointwise(weigh_key=weigh_relu),
    scalars=(LENGTH,),
    holds=_HOLDS | {Promise.ABSOLUTE, Promise.REFUSED_INERT},
    notes=_NOTES,
)

RELU_SQUARED = replace(
    RELU,
    name="relu_squared",
    title="ReLU^2 over L",
    formula="w = max(x, 0)^2 / L, L the context length",
    rule=Pointwise(weigh_key=weigh_relu_squared),
)

RELU_VISIBLE = Mechanism(
    name="relu_visible",
    title="ReLU over the number of visible keys",
    source="arXiv:2309.08586v2",
    page="relu_power",
    formula="w = max(x, 0) / n, n the number of visible keys",
    rule=Counted(weigh_key=weigh_relu_visible),
    holds=_HOLDS,
    notes=_NOTES | {Promise.REFUSED_INERT: "a refused key still counts in n"},
)

RELA = Mechanism(
    name="rela",
    title="ReLA",
    source="arXiv:2104.07012v2",
    page="rela",
    formula="w = max(x, 0); output gated and RMS-normalised over all heads",
    rule=Pointwise(weigh_key=weigh_rela),
    finish=(finish_rela,),
    scalars=(
        Scalar(
            name="gain",
            meaning="the RMSNorm gain of each head and channel",
            per=Per.HEAD_CHANNEL,
            init=_ones,
            probes=(1.0,),
        ),
        Scalar(
            name="gate",
            meaning="the slope of each channel's own gate",
            per=Per.HEAD_CHANNEL,
            init=_zeros,
            probes=(0.0, 0.7),
        ),
    ),
    holds=frozenset(
        {
            Promise.NONNEGATIVE,
            Promise.EXACT_ZERO,
            Promise.ABSOLUTE,
            Promise.REFUSED_INERT,
            Promise.REFUSES_EXACTLY,
            Promise.REFUSES_IN_LIMIT,
            Promise.CAUSAL,
            Promise.SINGLE_PASS,
            Promise.BLOCKS_SKIPPABLE,
        }
    ),
    notes={
        Promise.ABSOLUTE: "of the weights; after the norm, the output's scale depends on all keys of all heads",
        Promise.SCALE_INVARIANT: "the norm removes the scale, but the gate sigmoid(gate * o) depends on it",
    },
)
