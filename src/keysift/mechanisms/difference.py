"""Differences of two softmaxes that can reach exact zero, as proposed in discussion of differential attention.

With a = softmax(x), b = softmax(y):

    rectified        w = max(0, a - lam b)            (and the literal min of the proposal)
    Heaviside, literal    w = a - lam H(a - lam b)
    Heaviside, constant   w = a - lam H(b) = a - lam on every visible key, since b > 0: the second map drops out
    Heaviside, gate       w = a H(a - lam b)          (the intent; optionally renormalised)

H(0) = 0. H is flat, so nothing inside it learns without a surrogate: in the gate neither the second map nor lam does.
Letters: B batch, H heads, T queries, S keys.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from keysift.mechanisms import parts
from keysift.mechanisms.spec import Mechanism, Per, Promise, Rows, Scalar, constant

_SOURCE = "public discussion of arXiv:2410.05258v2"
_TWO_PASS = "both normalisers are needed before the comparison"
_NEEDS_LAM = "needs lam > 1; with lam < 1 at least 1 - lam of the mass stays"
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


def _lam() -> Scalar:
    return Scalar(
        name="lam",
        meaning="the weight of the second map in the comparison",
        per=Per.HEAD,
        # A learned lam stays in its range: softplus(log(e^0.5 - 1)) = 0.5.
        init=constant(math.log(math.expm1(0.5))),
        link=lambda raw, site: softplus(raw),
        above=0.0,
        above_allowed=True,
        probes=(0.0, 0.5, 1.0, 1.6),
    )


def _maps(x: Tensor, y: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    return parts.softmax(x, rows.keep_BHTS), parts.softmax(y, rows.keep_BHTS)


def rectified_difference(rectify: Literal["max", "min"] = "max") -> Mechanism:
    """`max` keeps what the first map has more of; `min` is the proposal's own text, kept for the record."""

    def weigh(x_BHTS: Tensor, y_BHTS: Tensor, rows: Rows, *, lam: Tensor) -> Tensor:
        a, b = _maps(x_BHTS, y_BHTS, rows)
        return (a - lam * b).clamp_min(0) if rectify == "max" else (a - lam * b).clamp_max(0)

    negative = {Promise.NONNEGATIVE, Promise.HULL_WITH_ZERO}
    return Mechanism(
        name="rectified_difference" if rectify == "max" else "rectified_difference_min",
        title="Rectified difference" if rectify == "max" else "Rectified difference, min as written",
        source=_SOURCE,
        page="difference",
        formula=f"w = {rectify}(0, softmax(x) - lam softmax(y))",
        weigh=weigh,
        maps=2,
        key_maps=2,
        scalars=(_lam(),),
        holds=_CUT if rectify == "max" else _CUT - negative,
        notes={
            Promise.SINGLE_PASS: _TWO_PASS,
            Promise.REFUSES_EXACTLY: _NEEDS_LAM
            if rectify == "max"
            else "where softmax(x) >= lam softmax(y) on every key",
        },
    )


class _StraightThrough(torch.autograd.Function):
    """H(x) forward, the slope of sigmoid(x / temperature) backward."""

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


def heaviside_gate(*, surrogate_temperature: float | None = None, renormalise: bool = False) -> Mechanism:
    """A hard gate on the comparison. With a surrogate temperature the second map and lam learn straight through."""

    def weigh(x_BHTS: Tensor, y_BHTS: Tensor, rows: Rows, *, lam: Tensor) -> Tensor:
        a, b = _maps(x_BHTS, y_BHTS, rows)
        w = a * _step(a - lam * b, surrogate_temperature)
        return parts.share(w) if renormalise else w

    return Mechanism(
        name="heaviside_gate_renormalised" if renormalise else "heaviside_gate",
        title="Heaviside gate, renormalised" if renormalise else "Heaviside gate",
        source=_SOURCE,
        page="difference",
        formula="w = a H(a - lam b)" + (" / its sum, or 0" if renormalise else ""),
        weigh=weigh,
        maps=2,
        key_maps=2,
        scalars=(_lam(),),
        flat=frozenset({"lam"}) if surrogate_temperature is None else frozenset(),
        holds=_CUT,
        notes={Promise.SINGLE_PASS: _TWO_PASS, Promise.REFUSES_EXACTLY: _NEEDS_LAM},
    )


def weigh_literal(x_BHTS: Tensor, y_BHTS: Tensor, rows: Rows, *, lam: Tensor) -> Tensor:
    a, b = _maps(x_BHTS, y_BHTS, rows)
    return a - lam * _step(a - lam * b, None)


def weigh_constant(x_BHTS: Tensor, rows: Rows, *, lam: Tensor) -> Tensor:
    a = parts.softmax(x_BHTS, rows.keep_BHTS)
    return torch.where(rows.keep_BHTS, a - lam, 0.0)


HEAVISIDE_LITERAL = Mechanism(
    name="heaviside_literal",
    title="Heaviside, literal reading",
    source=_SOURCE,
    page="difference",
    formula="w = a - lam H(a - lam b)",
    weigh=weigh_literal,
    maps=2,
    key_maps=2,
    scalars=(_lam(),),
    holds=frozenset({Promise.BOUNDED, Promise.REFUSES_IN_LIMIT, Promise.SHIFT_INVARIANT, Promise.CAUSAL}),
    notes={
        Promise.SUMS_TO_ONE: "sums to 1 - lam * (number of keys that pass), without a lower bound as keys are added",
        Promise.REFUSES_IN_LIMIT: "lam = 1 and all of the first map on one key",
        Promise.SINGLE_PASS: _TWO_PASS,
    },
)

HEAVISIDE_CONSTANT = Mechanism(
    name="heaviside_constant",
    title="Heaviside, applied to the second map",
    source=_SOURCE,
    page="difference",
    formula="w = a - lam on every visible key",
    weigh=weigh_constant,
    scalars=(_lam(),),
    holds=frozenset({Promise.BOUNDED, Promise.SHIFT_INVARIANT, Promise.CAUSAL, Promise.SINGLE_PASS}),
    notes={Promise.SUMS_TO_ONE: "sums to 1 - lam n"},
)
