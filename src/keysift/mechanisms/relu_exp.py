"""relu-exp: the positive part of exp(x) - 1. The threshold is at x = 0, where query and key are orthogonal.

    e+ = max(0, exp(x) - 1)
    relu_exp              w = e+
    relu_exp_normalised   w = e+ / sum e+, or 0 if no score is positive
    softpick              w = e+ / (sum |exp(x) - 1| + eps)        (arXiv:2504.20966v1)

The normalised forms are shifted by m = max(max x, 0): both exp(x - m) and exp(-m) stay in [0, 1].
relu is used instead of clamp because its derivative at 0 is 0. With clamp, a zero query would get a gradient of 1/eps.
Letters: B batch, H heads, T queries, S keys.
"""

import torch
from torch import Tensor

from keysift.mechanisms.rules import Pointwise, RunningSums
from keysift.mechanisms.spec import Mechanism, Promise

EPS = 1e-8
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


def weigh_key(x_BHTS: Tensor, distance_BHTS: Tensor) -> Tensor:
    return torch.expm1(torch.relu(x_BHTS))


def scaled_magnitude(x_BHTS: Tensor, m_BHT1: Tensor) -> Tensor:
    """exp(-m) |exp(x) - 1|, in a form that is accurate near x = 0 and does not overflow."""
    return torch.exp(torch.relu(x_BHTS) - m_BHT1) * -torch.expm1(-x_BHTS.abs())


def normalised(x_BHTS: Tensor, m_BHT1: Tensor) -> tuple[Tensor, Tensor]:
    """Terms of numerator and denominator of relu_exp_normalised, both times exp(-m)."""
    positive = scaled_magnitude(torch.relu(x_BHTS), m_BHT1)
    return positive, positive


def softpick(x_BHTS: Tensor, m_BHT1: Tensor) -> tuple[Tensor, Tensor]:
    """Terms of numerator and denominator of softpick, both times exp(-m)."""
    magnitude = scaled_magnitude(x_BHTS, m_BHT1)
    return torch.where(x_BHTS > 0, magnitude, 0.0), magnitude


def scaled_eps(m_BHT1: Tensor) -> Tensor:
    return EPS * torch.exp(-m_BHT1)


RELU_EXP = Mechanism(
    name="relu_exp",
    title="relu-exp",
    source=_DISCUSSION,
    page="relu_exp",
    formula="w = max(0, exp(x) - 1)",
    rule=Pointwise(weigh_key=weigh_key),
    holds=_HOLDS | {Promise.ABSOLUTE, Promise.REFUSED_INERT},
)

RELU_EXP_NORMALISED = Mechanism(
    name="relu_exp_normalised",
    title="relu-exp, normalised",
    source=_DISCUSSION,
    page="relu_exp",
    formula="w = max(0, exp(x) - 1) / its sum, or 0",
    rule=RunningSums(terms=normalised),
    holds=_HOLDS | {Promise.BOUNDED, Promise.REFUSED_INERT, Promise.HULL_WITH_ZERO},
    notes={Promise.SUMS_TO_ONE: "sums to one, or to zero if no score is positive"},
)

SOFTPICK = Mechanism(
    name="softpick",
    title="Softpick",
    source="arXiv:2504.20966v1",
    page="relu_exp",
    formula="w = max(0, exp(x) - 1) / (sum |exp(x) - 1| + eps)",
    rule=RunningSums(terms=softpick, rest=scaled_eps),
    holds=_HOLDS | {Promise.BOUNDED, Promise.HULL_WITH_ZERO},
    notes={Promise.REFUSED_INERT: "a refused key adds up to 1 to the denominator and so lowers the other weights"},
)
