"""Rectified linear attention (ReLA, arXiv:2104.07012v2).

    o = max(x, 0) v
    y = gain * o / sqrt(mean o^2 + eps) * sigmoid(gate * o)       the mean over all heads and channels of the position

The weights are pointwise. The norm is not: it couples all heads and removes most of the output's scale.
Letters: B batch, H heads, T queries, S keys, V value width.
"""

import torch
from torch import Tensor

from keysift.mechanisms import parts
from keysift.mechanisms.rules import Pointwise
from keysift.mechanisms.spec import Mechanism, Per, Promise, Scalar, Site

_EPS = 1e-8  # the value of the authors' code; it matters at initialisation, where scores are small


def _ones(site: Site, generator: torch.Generator | None) -> Tensor:
    return torch.ones(site.heads, site.value_width, dtype=torch.float64)


def _zeros(site: Site, generator: torch.Generator | None) -> Tensor:
    return torch.zeros(site.heads, site.value_width, dtype=torch.float64)


def weigh_key(x_BHTS: Tensor, distance_BHTS: Tensor) -> Tensor:
    return torch.relu(x_BHTS)


def finish(out_BHTV: Tensor, *, gain: Tensor, gate: Tensor) -> Tensor:
    return gain * parts.rms_norm(out_BHTV, (1, 3), _EPS) * torch.sigmoid(gate * out_BHTV)


RELA = Mechanism(
    name="rela",
    title="ReLA",
    source="arXiv:2104.07012v2",
    page="rela",
    formula="w = max(x, 0); output gated and RMS-normalised over all heads",
    rule=Pointwise(weigh_key=weigh_key),
    finish=(finish,),
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
