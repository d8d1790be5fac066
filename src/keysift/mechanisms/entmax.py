"""Sparse maps onto the simplex: sparsemax, entmax-1.5 and alpha-entmax.

    w = argmax over the simplex of  <w, x> + H_alpha(w)         (Tsallis entropy of order alpha)
      = max((alpha - 1) x - tau, 0)^(1 / (alpha - 1))           tau the one number with sum w = 1

sparsemax: alpha = 2 (arXiv:1602.02068v2). entmax-1.5 and any alpha: arXiv:1905.05702v2; learned: arXiv:1909.00015v2.
Scores are shifted so that the visible maximum is 0; then a key at or below -1 / (alpha - 1) is outside the support,
and keys that take no part are put there.

Letters: B batch, H heads, T queries, S keys.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from keysift.mechanisms import parts
from keysift.mechanisms.rules import Threshold
from keysift.mechanisms.spec import Mechanism, Per, Promise, Scalar, Site

Solve = Callable[[Tensor, Tensor, Tensor], Tensor]


def solve_sparsemax(x: Tensor, keep: Tensor, alpha: Tensor) -> Tensor:
    """By sorting: the support is the longest prefix with 1 + k x_(k) > sum of the first k."""
    z = torch.where(keep, x, -2.0)
    top = z.sort(-1, descending=True).values
    k = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
    total = top.cumsum(-1)
    size = (1 + k * top > total).sum(-1, keepdim=True).clamp_min(1)  # none only where a visible score is NaN
    tau = (total.gather(-1, size - 1) - 1) / size
    return (z - tau).clamp_min(0)


def solve_entmax15(x: Tensor, keep: Tensor, alpha: Tensor) -> Tensor:
    """By sorting: for each prefix length the tau that would normalise it; the support is the longest consistent one."""
    z = torch.where(keep, x / 2, -2.0)
    top = z.sort(-1, descending=True).values
    k = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
    mean = top.cumsum(-1) / k
    spread = k * (top.square().cumsum(-1) / k - mean.square())
    tau = mean - ((1 - spread) / k).clamp_min(0).sqrt()
    size = (tau <= top).sum(-1, keepdim=True).clamp_min(1)
    return (z - tau.gather(-1, size - 1)).clamp_min(0).square()


def solve_by_bisection(x: Tensor, keep: Tensor, alpha: Tensor) -> Tensor:
    """For any alpha: tau lies in [-1, -n^(1 - alpha)], halved until the type has no digit left."""
    z = torch.where(keep, (alpha - 1) * x, -2.0)
    seen = keep.sum(-1, keepdim=True).clamp_min(1).to(z.dtype)
    low = torch.full_like(z[..., :1], -1.0)
    width = low + 1 - seen ** (1 - alpha) - low
    power = 1 / (alpha - 1)
    for _ in range(60 if z.dtype == torch.float64 else 30):
        width = width / 2
        total = (z - (low + width)).clamp_min(0).pow(power).sum(-1, keepdim=True)
        low = torch.where(total >= 1, low + width, low)
    return parts.share((z - low).clamp_min(0).pow(power))


class _Entmax(torch.autograd.Function):
    """The solvers are not differentiated through: the optimum's own derivative is exact and cheaper."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Tensor, alpha: Tensor, order: float | None, solve: Solve) -> Tensor:
        w = solve(x - parts.visible_max(x, keep), keep, alpha).masked_fill(~keep, 0.0)
        ctx.save_for_backward(w, alpha)
        ctx.order = order
        return w

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, Tensor | None, None, None]:
        (dw,) = grads
        w, alpha = ctx.saved_tensors
        slope = _slope(w, alpha, ctx.order)
        portion = parts.share(slope)
        dx = slope * (dw - (portion * dw).sum(-1, keepdim=True))
        if not ctx.needs_input_grad[2]:
            return dx, None, None, None, None
        shannon = torch.xlogy(w, w)
        tilt = alpha - 1
        dalpha = (w - portion) / tilt.square() - (shannon - portion * shannon.sum(-1, keepdim=True)) / tilt
        return dx, None, (dw * dalpha).sum_to_size(alpha.shape), None, None


def _slope(w: Tensor, alpha: Tensor, order: float | None) -> Tensor:
    """w^(2 - alpha) on the support; powers that have a name are cheaper by it."""
    if order == 2:
        return (w > 0).to(w.dtype)
    return w.sqrt() if order == 1.5 else torch.where(w > 0, w.pow(2 - alpha), 0.0)


def solved(x: Tensor, keep: Tensor, order: Tensor | float, solve: Solve) -> Tensor:
    """The weights found by `solve`, with the derivative of the optimum."""
    alpha = order if isinstance(order, Tensor) else x.new_tensor(order)
    known = None if isinstance(order, Tensor) else order
    return _Entmax.apply(x, keep.expand(x.shape), alpha, known, solve)  # type: ignore[no-any-return,no-untyped-call]


def weigh_sparsemax(x_BHTS: Tensor, keep_BHTS: Tensor) -> Tensor:
    return solved(x_BHTS, keep_BHTS, 2.0, solve_sparsemax)


def weigh_entmax15(x_BHTS: Tensor, keep_BHTS: Tensor) -> Tensor:
    return solved(x_BHTS, keep_BHTS, 1.5, solve_entmax15)


def weigh_alpha_entmax(x_BHTS: Tensor, keep_BHTS: Tensor, *, alpha: Tensor) -> Tensor:
    return solved(x_BHTS, keep_BHTS, alpha, solve_by_bisection)


def learned(*, alpha: Tensor) -> Tensor:
    return alpha


def _between_one_and_two(raw: Tensor, site: Site) -> Tensor:
    # Kept off 1, where the power 1 / (alpha - 1) leaves fp32 no digits and sigmoid underflows into softmax.
    return 1 + raw.sigmoid().clamp_min(0.01)


_HOLDS = frozenset(
    {
        Promise.SUMS_TO_ONE,
        Promise.NONNEGATIVE,
        Promise.BOUNDED,
        Promise.EXACT_ZERO,
        Promise.REFUSED_INERT,
        Promise.CONVEX_HULL,
        Promise.HULL_WITH_ZERO,
        Promise.SHIFT_INVARIANT,
        Promise.CAUSAL,
        Promise.BLOCKS_SKIPPABLE,
    }
)
_NOTES = {Promise.SINGLE_PASS: "the threshold needs the whole row before any value can be read"}

SPARSEMAX = Mechanism(
    name="sparsemax",
    title="Sparsemax",
    source="arXiv:1602.02068v2",
    page="entmax",
    formula="w = max(x - tau, 0), sum w = 1",
    rule=Threshold(order=2.0, weigh_row=weigh_sparsemax),
    holds=_HOLDS,
    notes=_NOTES,
)

ENTMAX15 = Mechanism(
    name="entmax15",
    title="Entmax-1.5",
    source="arXiv:1905.05702v2",
    page="entmax",
    formula="w = max(x / 2 - tau, 0)^2, sum w = 1",
    rule=Threshold(order=1.5, weigh_row=weigh_entmax15),
    holds=_HOLDS,
    notes=_NOTES,
)

ALPHA_ENTMAX = Mechanism(
    name="alpha_entmax",
    title="Alpha-entmax",
    source="arXiv:1909.00015v2",
    page="entmax",
    formula="w = max((alpha - 1) x - tau, 0)^(1 / (alpha - 1)), sum w = 1",
    rule=Threshold(order=learned, weigh_row=weigh_alpha_entmax),
    scalars=(
        Scalar(
            name="alpha",
            meaning="the order of the entropy: 1 is softmax, 2 is sparsemax",
            per=Per.HEAD,
            link=_between_one_and_two,
            above=1.0,
            up_to=2.0,
            probes=(1.3, 1.5, 2.0),
        ),
    ),
    holds=_HOLDS,
    notes=_NOTES,
)
