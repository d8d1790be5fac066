"""Differences of two softmaxes that can be exactly zero, from the public discussion of differential attention.

With a = softmax(x), b = softmax(y):

    rectified             w = max(0, a - lam b)       (and min instead of max, as the proposal was written)
    Heaviside, literal    w = a - lam H(a - lam b)
    Heaviside, constant   w = a - lam H(b) = a - lam on every visible key, since b > 0: the second map drops out
    Heaviside, gate       w = a H(a - lam b)          (what the proposal intended; optionally renormalised)

H(0) = 0. H has zero gradient, so without a surrogate the gate gives no gradient to the second map and to lam.
Letters: B batch, H heads, T queries, S keys.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from keysift.mechanisms.rules import Rectified, Softmax, TwoSoftmaxes
from keysift.mechanisms.spec import Constant, Mechanism, Per, Promise, Scalar, softplus

_SOURCE = "public discussion of arXiv:2410.05258v2"
_TWO_PASS = "both normalisers are needed before the comparison"
_NEEDS_LAM = "needs lam > 1; with lam < 1 the weights sum to at least 1 - lam"
_CUT = frozenset(
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


LAM = Scalar(
    name="lam",
    meaning="the weight of the second map in the comparison",
    per=Per.HEAD,
    # softplus keeps a learned lam positive; softplus(log(e^0.5 - 1)) = 0.5.
    init=Constant(math.log(math.expm1(0.5))),
    link=softplus,
    above=0.0,
    above_allowed=True,
    probes=(0.0, 0.5, 1.0, 1.6),
)


def share(*, lam: Tensor) -> Tensor:
    return lam


def rectify_min(a_BHTS: Tensor, b_BHTS: Tensor, *, lam: Tensor) -> Tensor:
    return (a_BHTS - lam * b_BHTS).clamp_max(0)


def rectified_difference(rectify: Literal["max", "min"] = "max") -> Mechanism:
    """Rectified difference. `max` is the intended form; `min` is the form in the text of the proposal."""
    negative = {Promise.NONNEGATIVE, Promise.HULL_WITH_ZERO}
    return Mechanism(
        name="rectified_difference" if rectify == "max" else "rectified_difference_min",
        title="Rectified difference" if rectify == "max" else "Rectified difference, min as written",
        source=_SOURCE,
        page="difference",
        formula=f"w = {rectify}(0, softmax(x) - lam softmax(y))",
        rule=Rectified(softmax=Softmax(share=share)) if rectify == "max" else TwoSoftmaxes(combine=rectify_min),
        key_maps=2,
        scalars=(LAM,),
        holds=_CUT if rectify == "max" else _CUT - negative,
        notes={
            Promise.SINGLE_PASS: _TWO_PASS,
            Promise.REFUSES_EXACTLY: _NEEDS_LAM
            if rectify == "max"
            else "where softmax(x) >= lam softmax(y) on every key",
        },
    )


class _StraightThrough(torch.autograd.Function):
    """Straight-through step: H(x) forward, the derivative of sigmoid(x / temperature) backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, temperature: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.temperature = temperature
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x / ctx.temperature)
        return grads[0] * s * (1 - s) / ctx.temperature, None


def _step(x: Tensor, surrogate_temperature: float | None) -> Tensor:
    if surrogate_temperature is None:
        return (x > 0).to(x.dtype)
    return _StraightThrough.apply(x, surrogate_temperature)  # type: ignore[no-any-return,no-untyped-call]


@dataclass(frozen=True)
class Gate:
    """a H(a - lam b). With a surrogate temperature, H has the derivative of a sigmoid in the backward pass."""

    surrogate_temperature: float | None = None

    def __call__(self, a_BHTS: Tensor, b_BHTS: Tensor, *, lam: Tensor) -> Tensor:
        return a_BHTS * _step(a_BHTS - lam * b_BHTS, self.surrogate_temperature)


def heaviside_gate(*, surrogate_temperature: float | None = None, renormalise: bool = False) -> Mechanism:
    """Hard gate a H(a - lam b). A surrogate temperature gives gradients to the second map and to lam."""
    return Mechanism(
        name="heaviside_gate_renormalised" if renormalise else "heaviside_gate",
        title="Heaviside gate, renormalised" if renormalise else "Heaviside gate",
        source=_SOURCE,
        page="difference",
        formula="w = a H(a - lam b)" + (" / its sum, or 0" if renormalise else ""),
        rule=TwoSoftmaxes(combine=Gate(surrogate_temperature), renormalise=renormalise),
        key_maps=2,
        scalars=(LAM,),
        flat=frozenset({"lam"}) if surrogate_temperature is None else frozenset(),
        holds=_CUT,
        notes={Promise.SINGLE_PASS: _TWO_PASS, Promise.REFUSES_EXACTLY: _NEEDS_LAM},
    )


def literal(a_BHTS: Tensor, b_BHTS: Tensor, *, lam: Tensor) -> Tensor:
    return a_BHTS - lam * _step(a_BHTS - lam * b_BHTS, None)


def constant_level(count_BHT1: Tensor, *, lam: Tensor) -> Tensor:
    return lam


HEAVISIDE_LITERAL = Mechanism(
    name="heaviside_literal",
    title="Heaviside, literal reading",
    source=_SOURCE,
    page="difference",
    formula="w = a - lam H(a - lam b)",
    rule=TwoSoftmaxes(combine=literal),
    key_maps=2,
    scalars=(LAM,),
    holds=frozenset({Promise.BOUNDED, Promise.REFUSES_IN_LIMIT, Promise.SHIFT_INVARIANT, Promise.CAUSAL}),
    notes={
        Promise.SUMS_TO_ONE: "sums to 1 - lam * (number of keys with a > lam b), which has no lower bound",
        Promise.REFUSES_IN_LIMIT: "lam = 1 and a first map concentrated on one key",
        Promise.SINGLE_PASS: _TWO_PASS,
    },
)

HEAVISIDE_CONSTANT = Mechanism(
    name="heaviside_constant",
    title="Heaviside, applied to the second map",
    source=_SOURCE,
    page="difference",
    formula="w = a - lam on every visible key",
    rule=Softmax(level=constant_level),
    scalars=(LAM,),
    holds=frozenset({Promise.BOUNDED, Promise.SHIFT_INVARIANT, Promise.CAUSAL, Promise.SINGLE_PASS}),
    notes={Promise.SUMS_TO_ONE: "sums to 1 - lam n"},
)
