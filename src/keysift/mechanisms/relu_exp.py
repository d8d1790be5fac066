"""relu-exp: what exp(x) has above 1, and nothing below. The threshold stands at orthogonality, x = 0.

    e+ = max(0, exp(x) - 1)
    relu_exp              w = e+
    relu_exp_normalised   w = e+ / sum e+, or 0 where no score is positive
    softpick              w = e+ / (sum |exp(x) - 1| + eps)        (arXiv:2504.20966v1)

The normalised forms are shifted by m = max(max x, 0): both exp(x - m) and exp(-m) stay in [0, 1].
relu, not clamp: its slope at 0 is 0, so a zero query gets no gradient of 1/eps.
Letters: B batch, H heads, T queries, S keys.
"""

import torch
from torch import Tensor

from keysift.mechanisms import parts
from keysift.mechanisms.spec import Mechanism, Promise, Rows

_EPS = 1e-8
_DISCUSSION = "public discussion of arXiv:2410.05258v2"
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


def weigh(x_BHTS: Tensor, rows: Rows) -> Tensor:
    return torch.expm1(torch.relu(torch.where(rows.keep_BHTS, x_BHTS, 0.0)))


def _shifted(x: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """exp(-m) (exp(x) - 1), zero where masked, and m. Both forms keep their digits where x is near 0."""
    m = parts.visible_max(x, rows.keep_BHTS).clamp_min(0)
    x = torch.where(rows.keep_BHTS, x, 0.0)
    above = torch.exp(x - m) * -torch.expm1(-x.clamp_min(0))
    below = torch.exp(-m) * torch.expm1(x.clamp_max(0))
    return torch.where(x > 0, above, below), m


def weigh_normalised(x_BHTS: Tensor, rows: Rows) -> Tensor:
    grown, _ = _shifted(x_BHTS, rows)
    return parts.share(torch.relu(grown))


def weigh_softpick(x_BHTS: Tensor, rows: Rows) -> Tensor:
    grown, m = _shifted(x_BHTS, rows)
    total = grown.abs().sum(-1, keepdim=True) + _EPS * torch.exp(-m)
    return torch.relu(grown) / total.clamp_min(torch.finfo(total.dtype).tiny)


RELU_EXP = Mechanism(
    name="relu_exp",
    title="relu-exp",
    source=_DISCUSSION,
    page="relu_exp",
    formula="w = max(0, exp(x) - 1)",
    weigh=weigh,
    holds=_HOLDS | {Promise.ABSOLUTE, Promise.REFUSED_INERT},
)

RELU_EXP_NORMALISED = Mechanism(
    name="relu_exp_normalised",
    title="relu-exp, normalised",
    source=_DISCUSSION,
    page="relu_exp",
    formula="w = max(0, exp(x) - 1) / its sum, or 0",
    weigh=weigh_normalised,
    holds=_HOLDS | {Promise.BOUNDED, Promise.REFUSED_INERT, Promise.HULL_WITH_ZERO},
    notes={Promise.SUMS_TO_ONE: "sums to one, or to zero where no score is positive"},
)

SOFTPICK = Mechanism(
    name="softpick",
    title="Softpick",
    source="arXiv:2504.20966v1",
    page="relu_exp",
    formula="w = max(0, exp(x) - 1) / (sum |exp(x) - 1| + eps)",
    weigh=weigh_softpick,
    holds=_HOLDS | {Promise.BOUNDED, Promise.HULL_WITH_ZERO},
    notes={Promise.REFUSED_INERT: "a refused key adds up to one to the denominator, so it still dilutes"},
)
