"""Softmax minus a constant, as it is and rectified.

    softmax_minus_constant   w = gain (softmax(x) - c)         e.g. gain 2, c 1/2
    softmax_minus_uniform    w = softmax(x) - lam / n          differential attention whose second map is uniform

    elastic_softmax   w = max(0, softmax(x) + tau / n)                  tau <= 0 per head (arXiv:2601.00919)
    clipped_softmax   w = max(0, (1 - gamma) softmax(x) + gamma)        gamma <= 0 (arXiv:2306.12929)

The first two are controls for differential attention, with a constant in place of the second map. Rectified, a key with
a small share of the softmax gets weight exactly zero. Elastic-Softmax is the rectified difference of a softmax and the
uniform map, with lam = -tau.

n is the number of visible keys. Letters: B batch, H heads, T queries.
"""

import math

import torch
from torch import Tensor

from keysift.mechanisms.rules import Rectified, Softmax
from keysift.mechanisms.spec import Constant, Mechanism, Per, Promise, Scalar, Site, softplus

_SOURCE = "public discussion of arXiv:2410.05258v2"
_HOLDS = frozenset({Promise.BOUNDED, Promise.SHIFT_INVARIANT, Promise.CAUSAL, Promise.SINGLE_PASS})

_RECTIFIED_HOLDS = frozenset(
    {
        Promise.NONNEGATIVE,
        Promise.BOUNDED,
        Promise.EXACT_ZERO,
        Promise.HULL_WITH_ZERO,
        Promise.REFUSES_EXACTLY,
        Promise.REFUSES_IN_LIMIT,
        Promise.SHIFT_INVARIANT,
        Promise.CAUSAL,
        Promise.BLOCKS_SKIPPABLE,
    }
)
_RECTIFIED_NOTES = {Promise.SINGLE_PASS: "the normaliser is needed before the comparison"}
_ALPHA = 12.0  # of the authors' runs: gamma = -alpha / context length


def constant(count_BHT1: Tensor, *, c: Tensor) -> Tensor:
    return c


def uniform(count_BHT1: Tensor, *, lam: Tensor) -> Tensor:
    return lam / count_BHT1


def weight_gain(*, gain: Tensor) -> Tensor:
    return gain


def uniform_level(count_BHT1: Tensor, *, tau: Tensor) -> Tensor:
    return -tau / count_BHT1


def constant_level(count_BHT1: Tensor, *, gamma: Tensor) -> Tensor:
    return -gamma / (1 - gamma)


def stretch(*, gamma: Tensor) -> Tensor:
    return 1 - gamma


def _minus_softplus(raw: Tensor, site: Site) -> Tensor:
    return -softplus(raw, site)


def _by_context(site: Site, generator: torch.Generator | None) -> Tensor:
    return torch.tensor(-_ALPHA / site.context, dtype=torch.float64)


SOFTMAX_MINUS_CONSTANT = Mechanism(
    name="softmax_minus_constant",
    title="Softmax minus a constant",
    source=_SOURCE,
    page="minus_constant",
    formula="w = gain (softmax(x) - c)",
    rule=Softmax(level=constant, gain=weight_gain),
    scalars=(
        Scalar(
            name="gain",
            meaning="the factor of the weights",
            per=Per.HEAD,
            init=Constant(2.0),
            learned=False,
            probes=(1.0, 2.0),
        ),
        Scalar(
            name="c",
            meaning="the constant subtracted from every weight",
            per=Per.HEAD,
            init=Constant(0.5),
            learned=False,
            probes=(0.5, 1.0),
        ),
    ),
    holds=_HOLDS,
    notes={Promise.SUMS_TO_ONE: "sums to gain (1 - c n)"},
)

SOFTMAX_MINUS_UNIFORM = Mechanism(
    name="softmax_minus_uniform",
    title="Softmax minus the uniform map",
    source=_SOURCE,
    page="minus_constant",
    formula="w = softmax(x) - lam / n",
    rule=Softmax(level=uniform),
    scalars=(
        Scalar(
            name="lam",
            meaning="the share of the uniform map that is subtracted",
            per=Per.HEAD,
            init=Constant(0.5),
            probes=(0.0, 0.5, 1.0),
        ),
    ),
    holds=_HOLDS | {Promise.REFUSES_IN_LIMIT},
    notes={
        Promise.SUMS_TO_ONE: "sums to 1 - lam",
        Promise.REFUSES_IN_LIMIT: "lam = 1 and all scores equal",
    },
)

ELASTIC_SOFTMAX = Mechanism(
    name="elastic_softmax",
    title="Elastic-Softmax",
    source="arXiv:2601.00919",
    page="elastic",
    formula="w = max(0, softmax(x) + tau / n), n the number of visible keys",
    rule=Rectified(softmax=Softmax(level=uniform_level)),
    scalars=(
        Scalar(
            name="tau",
            meaning="the offset of every weight, in units of the uniform weight 1 / n",
            per=Per.HEAD,
            # -softplus keeps a learned tau negative; softplus(log(e^0.5 - 1)) = 0.5.
            init=Constant(math.log(math.expm1(0.5))),
            link=_minus_softplus,
            up_to=0.0,
            probes=(-3.0, -1.0, -0.5, 0.0),
        ),
    ),
    holds=_RECTIFIED_HOLDS,
    notes=_RECTIFIED_NOTES | {Promise.REFUSES_EXACTLY: "needs tau < -1: the largest share is at least 1 / n"},
)

CLIPPED_SOFTMAX = Mechanism(
    name="clipped_softmax",
    title="Clipped softmax",
    source="arXiv:2306.12929",
    page="elastic",
    formula="w = max(0, (1 - gamma) softmax(x) + gamma)",
    rule=Rectified(softmax=Softmax(level=constant_level, gain=stretch)),
    scalars=(
        Scalar(
            name="gamma",
            meaning="the weight of a key with no share of the softmax, before it is clipped at 0",
            per=Per.HEAD,
            init=_by_context,
            up_to=0.0,
            learned=False,
            probes=(-1.0, -0.1, -0.003),
        ),
    ),
    holds=_RECTIFIED_HOLDS,
    notes=_RECTIFIED_NOTES | {Promise.REFUSES_EXACTLY: "needs n > 1 - 1 / gamma: the largest share is at least 1 / n"},
)
