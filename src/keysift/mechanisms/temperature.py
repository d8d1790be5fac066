"""Softmax with a temperature that knows how many keys there are.

    ssmax                   w = softmax(s log(n) x)                                   (arXiv:2501.19399v1)
    selective_temperature   w = softmax((1 + token + growth log(n)) x)                (arXiv:2411.12892v1)

n counts the keys the query sees, row by row: a padded length would break decode == prefill.
Letters: B batch, H heads, T queries, S keys.
"""

import math

import torch
from torch import Tensor

from keysift.mechanisms import parts
from keysift.mechanisms.spec import Mechanism, Per, Promise, Rows, Scalar, Site, constant

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


def _log_seen(x: Tensor, rows: Rows) -> Tensor:
    return rows.seen_BHT1.clamp_min(1).to(x.dtype).log()


def weigh_ssmax(x_BHTS: Tensor, rows: Rows, *, sharpness: Tensor) -> Tensor:
    return parts.softmax(sharpness * _log_seen(x_BHTS, rows) * x_BHTS, rows.keep_BHTS)


def weigh_selective(x_BHTS: Tensor, rows: Rows, *, token: Tensor, growth: Tensor) -> Tensor:
    return parts.softmax((1 + token + growth * _log_seen(x_BHTS, rows)) * x_BHTS, rows.keep_BHTS)


def _as_softmax_on_average(site: Site, generator: torch.Generator | None) -> Tensor:
    """1 / mean(log n) over the rows of the context."""
    mean = math.lgamma(site.context + 1) / site.context
    return torch.full((site.heads,), 1 / mean if mean > 0 else 1.0, dtype=torch.float64)


SSMAX = Mechanism(
    name="ssmax",
    title="Scalable softmax (SSMax)",
    source="arXiv:2501.19399v1",
    page="temperature",
    formula="w = softmax(s log(n) x), n the keys the query sees",
    weigh=weigh_ssmax,
    scalars=(
        Scalar(
            name="sharpness",
            meaning="the factor s in front of log n",
            per=Per.HEAD,
            init=_as_softmax_on_average,
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
    weigh=weigh_selective,
    scalars=(
        Scalar(
            name="token",
            meaning="what the query's own token adds to the inverse temperature",
            per=Per.QUERY,
            link=lambda raw, site: raw.tanh(),
            above=-1.0,
            above_allowed=True,
            up_to=1.0,
            probes=(-0.5, 0.0, 0.8),
        ),
        Scalar(
            name="growth",
            meaning="how fast the inverse temperature grows with log n",
            per=Per.HEAD,
            init=constant(1.5),
            link=lambda raw, site: torch.exp(-raw.exp()),
            above=0.0,
            above_allowed=True,
            up_to=1.0,
            probes=(0.01, 0.4),
        ),
    ),
    holds=_HOLDS,
)
