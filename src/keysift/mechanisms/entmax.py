"""Sparsemax, entmax-1.5 and alpha-entmax: sparse maps onto the simplex.

    w = argmax over the simplex of  <w, x> + H_alpha(w)         (Tsallis entropy of order alpha)
      = max((alpha - 1) x - tau, 0)^(1 / (alpha - 1))           with the unique tau for which sum w = 1

sparsemax: alpha = 2 (arXiv:1602.02068v2). entmax-1.5 and any alpha: arXiv:1905.05702v2; learned: arXiv:1909.00015v2.
asentmax: entmax-1.5 of (1 + strength log(n + 1)^growth) x, n the number of visible keys (arXiv:2506.16640).
Scores are shifted so that the visible maximum is 0. A key at or below -1 / (alpha - 1) is then outside the support, and
masked keys are set to such a value.

Letters: B batch, H heads, T queries, S keys.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from keysift.mechanisms import parts
from keysift.mechanisms.rules import Threshold
from keysift.mechanisms.spec import Mechanism, Per, Promise, Scalar, Site, softplus

Solve = Callable[[Tensor, Tensor, Tensor], Tensor]


def solve_sparsemax(x: Tensor, keep: Tensor, alpha: Tensor) -> Tensor:
    """Solve by sorting: the support is the longest prefix with 1 + k x_(k) > sum of the first k scores."""
    z = torch.where(keep, x, -2.0)
    top = z.sort(-1, descending=True).values
    k = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
    total = top.cumsum(-1)
    size = (1 + k * top > total).sum(-1, keepdim=True).clamp_min(1)  # 0 only if a visible score is NaN
    tau = (total.gather(-1, size - 1) - 1) / size
    return (z - tau).clamp_min(0)


def solve_entmax15(x: Tensor, keep: Tensor, alpha: Tensor) -> Tensor:
    """Solve by sorting: compute the tau of each prefix; the support is the longest prefix consistent with its tau."""
    z = torch.where(keep, x / 2, -2.0)
    top = z.sort(-1, descending=True).values
    k = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
    mean = top.cumsum(-1) / k
    spread = k * (top.square().cumsum(-1) / k - mean.square())
    tau = mean - ((1 - spread) / k).clamp_min(0).sqrt()
    size = (tau <= top).sum(-1, keepdim=True).clamp_min(1)
    return (z - tau.gather(-1, size - 1)).clamp_min(0).square()


def solve_by_bisection(x: Tensor, keep: Tensor, alpha: Tensor) -> Tensor:
    """Solve by bisection, for any alpha: tau is in [-1, -n^(1 - alpha)], halved down to the precision of the dtype."""
    z = torch.where(keep, (alpha - 1) * x, -2.0)
    seen = keep.sum(-1, keepdim=True).clamp_min(1).to(z.dtype)
    low = torch.full_like(z[..., :1], -1.0)
    width = 1 - seen ** (1 - alpha)
    power = 1 / (alpha - 1)
    for _ in range(60 if z.dtype == torch.float64 else 30):
        width = width / 2
        total = (z - (low + width)).clamp_min(0).pow(power).sum(-1, keepdim=True)
        low = torch.where(total >= 1, low + width, low)
    return parts.normalise((z - low).clamp_min(0).pow(power))


class _Entmax(torch.autograd.Function):
    """Entmax with the analytic derivative of the optimum, which is exact and cheaper than that of the solver."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, keep: Tensor, alpha: Tensor, order: float | None, solve: Solve) -> Tensor:
        return solve(x - parts.visible_max(x, keep), keep, alpha).masked_fill(~keep, 0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, _, alpha, ctx.order, _ = inputs
        ctx.save_for_backward(output, alpha)
        ctx.save_for_forward(output, alpha)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, Tensor | None, None, None]:
        (dw,) = grads
        w, alpha = ctx.saved_tensors
        dx = _jacobian_product(w, alpha, ctx.order, dw)
        if not ctx.needs_input_grad[2]:
            return dx, None, None, None, None
        return dx, None, (dw * _order_derivative(w, alpha, ctx.order)).sum_to_size(alpha.shape), None, None


class _EntmaxForwardMode(_Entmax):
    """The same with a forward-mode derivative, which torch.compile does not support."""

    @staticmethod
    def jvp(ctx: Any, dx: Tensor, dkeep: None, dalpha: Tensor | None, dorder: None, dsolve: None) -> Tensor:
        w, alpha = ctx.saved_tensors
        dw = _jacobian_product(w, alpha, ctx.order, dx)  # the Jacobian of the scores is symmetric
        return dw if dalpha is None else dw + dalpha * _order_derivative(w, alpha, ctx.order)


def _jacobian_product(w: Tensor, alpha: Tensor, order: float | None, d: Tensor) -> Tensor:
    """The Jacobian of the weights with respect to the scores, times d."""
    slope = _slope(w, alpha, order)
    return slope * (d - (parts.normalise(slope) * d).sum(-1, keepdim=True))


def _order_derivative(w: Tensor, alpha: Tensor, order: float | None) -> Tensor:
    """The derivative of the weights with respect to alpha."""
    portion = parts.normalise(_slope(w, alpha, order))
    shannon = w * _on_support(w).log()
    tilt = alpha - 1
    return (w - portion) / tilt.square() - (shannon - portion * shannon.sum(-1, keepdim=True)) / tilt


def _slope(w: Tensor, alpha: Tensor, order: float | None) -> Tensor:
    """w^(2 - alpha) on the support, with faster functions for alpha = 2 and 1.5."""
    if order == 2:
        return (w > 0).to(w.dtype)
    if order == 1.5 and not torch.is_grad_enabled():
        return w.sqrt()
    on_support = _on_support(w)
    return torch.where(w > 0, on_support.sqrt() if order == 1.5 else on_support.pow(2 - alpha), 0.0)


def _on_support(w: Tensor) -> Tensor:
    """The weights with 1 in place of 0, where the derivatives of powers and logarithms are infinite."""
    return torch.where(w > 0, w, 1.0)


def weigh_with_solver(x: Tensor, keep: Tensor, order: Tensor | float, solve: Solve) -> Tensor:
    """Weights from `solve`. Their gradient is that of the exact solution, whichever solver computes it."""
    alpha = order if isinstance(order, Tensor) else x.new_tensor(order)
    known = None if isinstance(order, Tensor) else order
    function = _Entmax if torch.compiler.is_compiling() else _EntmaxForwardMode
    return function.apply(x, keep.expand(x.shape), alpha, known, solve)  # type: ignore[no-any-return,no-untyped-call]


def weigh_sparsemax(x_BHTS: Tensor, keep_BHTS: Tensor) -> Tensor:
    return weigh_with_solver(x_BHTS, keep_BHTS, 2.0, solve_sparsemax)


def weigh_entmax15(x_BHTS: Tensor, keep_BHTS: Tensor) -> Tensor:
    return weigh_with_solver(x_BHTS, keep_BHTS, 1.5, solve_entmax15)


def weigh_alpha_entmax(x_BHTS: Tensor, keep_BHTS: Tensor, *, alpha: Tensor) -> Tensor:
    return weigh_with_solver(x_BHTS, keep_BHTS, alpha, solve_by_bisection)


def adaptive_factor(count_BHT1: Tensor, *, strength: Tensor, growth: Tensor) -> Tensor:
    # log(n + 1), not log n: at n = 1 a negative power of 0 would be infinite.
    return 1 + strength * (count_BHT1 + 1).log() ** growth


def learned(*, alpha: Tensor) -> Tensor:
    return alpha


def _between_one_and_two(raw: Tensor, site: Site) -> Tensor:
    # Bounded away from 1, where the power 1 / (alpha - 1) exceeds the precision of fp32.
    return 1 + raw.sigmoid().clamp_min(0.01)


def _within_two(raw: Tensor, site: Site) -> Tensor:
    return 2 * raw.tanh()


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
_NOTES = {Promise.SINGLE_PASS: "tau depends on the whole row and is needed before values can be summed"}

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

ASENTMAX = Mechanism(
    name="asentmax",
    title="Adaptive-scalable entmax (ASEntmax)",
    source="arXiv:2506.16640",
    page="entmax",
    formula="w = entmax15((1 + strength log(n + 1)^growth) x), n the number of visible keys",
    rule=Threshold(order=1.5, weigh_row=weigh_entmax15, factor=adaptive_factor),
    scalars=(
        Scalar(
            name="strength",
            meaning="the query token's factor of the power of log(n + 1)",
            per=Per.QUERY,
            bias=True,
            link=softplus,
            above=0.0,
            above_allowed=True,
            probes=(0.1, 0.3, 0.9),
        ),
        Scalar(
            name="growth",
            meaning="the query token's power of log(n + 1)",
            per=Per.QUERY,
            bias=True,
            link=_within_two,
            above=-2.0,
            above_allowed=True,
            up_to=2.0,
            probes=(-1.0, 0.4, 1.0),
        ),
    ),
    holds=_HOLDS - {Promise.REFUSED_INERT},
    notes=_NOTES | {Promise.REFUSED_INERT: "a refused key still counts in n"},
)
