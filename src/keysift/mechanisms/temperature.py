"""Softmax with a temperature that depends on the number of keys.

    ssmax                   w = softmax(s log(n) x)                                   (arXiv:2501.19399v1)
    selective_temperature   w = softmax((1 + token + growth log(n)) x)                (arXiv:2411.12892v1)

n is the number of visible keys of each row. With a padded length instead, decoding would differ from prefill.
Letters: B batch, H heads, T queries.
"""

import math

import torch
from torch import Tensor

from keysift.mechanisms.rules import Softmax
from keysift.mechanisms.spec import Constant, Mechanism, Per, Promise, Scalar, Site

_HOLDS = frozenset(
    {
        Promise.SUMS_TO_ONE,
        Promise.NONNEGATIVE,
        Promise.BOUNDED,
        Promise.CONVEX_HULL,
        Promise.HULL_WITH_ZERO,
        Promise.SHIFT_INVARIANT,
        Promise.CAUSAL,
        Promise.SINGLE_PASS,
    }
)


def ssmax_factor(count_BHT1: Tensor, *, sharpness: Tensor) -> Tensor:
    return sharpness * count_BHT1.log()


def selective_factor(count_BHT1: Tensor, *, token: Tensor, growth: Tensor) -> Tensor:
    return 1 + token + growth * count_BHT1.log()


def _initial_sharpness(site: Site, generator: torch.Generator | None) -> Tensor:
    """1 / mean(log n) over the rows of the context, so that the mean factor of the scores is 1."""
    mean = math.lgamma(site.context + 1) / site.context
    return torch.full((site.heads,), 1 / mean if mean > 0 else 1.0, dtype=torch.float64)


def _tanh(raw: Tensor, site: Site) -> Tensor:
    return raw.tanh()


def _double_exponential(raw: Tensor, site: Site) -> Tensor:
    return torch.exp(-raw.exp())


SSMAX = Mechanism(
    name="ssmax",
    title="Scalable softmax (SSMax)",
    source="arXiv:2501.19399v1",
    page="temperature",
    formula="w = softmax(s log(n) x), n the number of visible keys",
    rule=Softmax(factor=ssmax_factor),
    scalars=(
        Scalar(
            name="sharpness",
            meaning="the factor s in front of log n",
            per=Per.HEAD,
            init=_initial_sharpness,
            probes=(0.15, 0.43, 1.0),
        ),
    ),
    holds=_HOLDS,
)

SELECTIVE_TEMPERATURE = Mechanism(
    name="selective_temperature",
    title="Selective temperature",
    source="arXiv:2411.12892v1",
    page="temperature",
    formula="w = softmax((1 + token + growth log(n)) x)",
    rule=Softmax(factor=selective_factor),
    scalars=(
        Scalar(
            name="token",
            meaning="the query token's addition to the inverse temperature",
            per=Per.QUERY,
            link=_tanh,
            above=-1.0,
            above_allowed=True,
            up_to=1.0,
            probes=(-0.5, 0.0, 0.8),
        ),
        Scalar(
            name="growth",
            meaning="growth of the inverse temperature with log n",
            per=Per.HEAD,
            init=Constant(1.5),
            link=_double_exponential,
            above=0.0,
            above_allowed=True,
            up_to=1.0,
            probes=(0.01, 0.4),
        ),
    ),
    holds=_HOLDS,
)
