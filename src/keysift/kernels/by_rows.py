"""Any rule, a block of whole rows at a time, in plain torch: memory grows with the keys of a block, not with T x S.

Each block of queries reads all keys it may see at once, so whatever needs the whole row first (a threshold, two
normalisers, a maximum) has it. Only inputs are saved: the backward pass computes each block anew, lets autograd
differentiate the rule, and adds the gradients of keys and values in place.

    Threshold     tau by Newton's method on the block, from below, instead of sorting every row
    others        the definition as it stands

Letters: B batch, H heads, M maps, T queries, S keys, K key width, V value width.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from keysift.kernels import dense, parts
from keysift.kernels.blockwise import scalar_part
from keysift.kernels.call import Call, has_tangents, may_look, part, transformed
from keysift.mechanisms import entmax
from keysift.mechanisms.rules import Threshold

PAIRS = 1 << 20  # pairs of queries and keys, over all heads, that are computed together: what a cache holds
STEPS = 50
Q, K, V = 0, 1, 2  # places among the inputs; scalars follow, then the bias


def declines(call: Call, return_weights: bool) -> str | None:
    if return_weights:
        return "it never forms the weights as a whole"
    if transformed():
        return "it computes rows anew in its backward pass, which torch.func cannot transform"
    if has_tangents(call):
        return "it has no forward-mode derivative"
    return None


def run(call: Call) -> tuple[Tensor, None]:
    q, k, v, scalars = dense.prepare(call)
    inputs = (q, k, v, *scalars.values(), *(() if call.bias is None else (call.bias,)))
    # A compiled graph cannot hold a backward pass that calls autograd.
    compute = _checkpointed if torch.compiler.is_compiling() else _ByRows.apply
    out = compute(call, *inputs)
    return dense.finish(call.mechanism, out, scalars).to(call.v.dtype), None


def _blocks(call: Call) -> Iterator[tuple[slice, slice]]:
    return parts.blocks(call, max(PAIRS // (call.q.shape[0] * call.q.shape[1] * call.k.shape[2]), 8))


def _view(call: Call, place: int, x: Tensor, rows: slice, keys: slice) -> Tensor:
    """What a block reads of the input at this place, or where it adds to its gradient."""
    if place <= V:
        return x[:, :, rows if place == Q else keys]
    names = list(call.scalars)[place - 3 :]
    return scalar_part(call, names[0], x, rows, keys, None) if names else part(x, rows, keys)


def _views(call: Call, inputs: Sequence[Tensor], rows: slice, keys: slice) -> list[Tensor]:
    return [_view(call, place, x, rows, keys) for place, x in enumerate(inputs)]


def _weigh(call: Call, rows: slice, keys: slice, x: Tensor, rest: Sequence[Tensor]) -> Tensor:
    """Weights B H T S of a block's scores B (H M) T S; the rest are its scalars, and its bias if there is one."""
    maps = x.view(x.shape[0], call.heads, -1, *x.shape[2:])
    if call.bias is not None:
        maps = maps + rest[-1][:, :, None].to(x.dtype)
    scalars = dict(zip(call.scalars, rest, strict=False))
    visible, rule = call.visible(rows, keys), call.mechanism.rule
    if isinstance(rule, Threshold):
        order = rule.order if isinstance(rule.order, float) else dense.applying(call.mechanism, scalars)(rule.order)
        masked = torch.where(visible.keep_BHTS, maps[:, :, 0], 0.0)
        return entmax.solved(masked, visible.keep_BHTS, order, solve_by_newton)
    return dense.weigh(call.mechanism, maps.unbind(2), visible, scalars)


def _checkpointed(call: Call, *inputs: Tensor) -> Tensor:
    """By torch's own means, which compiled graphs and second derivatives need."""

    def block(rows: slice, keys: slice, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> Tensor:
        return _weigh(call, rows, keys, call.scale * (q @ k.mT), rest) @ v

    done = [
        checkpoint(block, rows, keys, *_views(call, inputs, rows, keys), use_reentrant=False)
        for rows, keys in _blocks(call)
    ]
    return torch.cat(done, dim=2)


def _outline(call: Call) -> Call:
    """The call without its numbers, which would stay alive with the graph: shapes, names, and who sees whom."""

    def hollow(x: Tensor) -> Tensor:
        return x.new_empty(()).expand(x.shape)

    return replace(
        call,
        q=hollow(call.q),
        k=hollow(call.k),
        v=hollow(call.v),
        bias=None if call.bias is None else hollow(call.bias),
        scalars={name: hollow(x) for name, x in call.scalars.items()},
    )


class _ByRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, *inputs: Tensor) -> Tensor:
        ctx.call = _outline(call)
        ctx.save_for_backward(*inputs)
        out = inputs[0].new_empty(call.q.shape[0], call.heads, call.q.shape[2], call.v.shape[3])
        with _full_precision(out):
            for rows, keys in _blocks(call):
                q, k, v, *rest = _views(call, inputs, rows, keys)
                out[:, :, rows] = _weigh(call, rows, keys, call.scale * (q @ k.mT), rest) @ v
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs: tuple[Tensor, ...] = ctx.saved_tensors
        wanted = [place for place in range(len(inputs)) if ctx.needs_input_grad[1 + place]]
        differentiate = _differentiable_gradients if torch.is_grad_enabled() else _gradients
        found = differentiate(ctx.call, inputs, wanted, grads[0])
        return None, *(found.get(place) for place in range(len(inputs)))


def _full_precision(x: Tensor) -> AbstractContextManager[Any]:
    """Without autocast: it is off in a backward pass, whose blocks must be those of the forward pass."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def _gradients(call: Call, inputs: Sequence[Tensor], wanted: Sequence[int], dout: Tensor) -> dict[int, Tensor]:
    sums = {place: torch.zeros_like(inputs[place], memory_format=torch.contiguous_format) for place in wanted}
    with _full_precision(dout):
        for rows, keys in _blocks(call):
            to = {place: _view(call, place, total, rows, keys) for place, total in sums.items()}
            _add_gradients(call, rows, keys, _views(call, inputs, rows, keys), dout[:, :, rows], to)
    return sums


def _add_gradients(
    call: Call, rows: slice, keys: slice, inputs: Sequence[Tensor], dout: Tensor, to: Mapping[int, Tensor]
) -> None:
    """Of one block. The two products are differentiated by hand: left to autograd, every block would make gradients
    as long as all keys."""
    q, k, v, *rest = inputs
    x = (call.scale * (q @ k.mT)).requires_grad_(Q in to or K in to)
    rest = [each.detach().requires_grad_(place in to) for place, each in enumerate(rest, 3)]
    with torch.enable_grad():
        w = _weigh(call, rows, keys, x, rest)
    if V in to:
        _add_product(to[V], w.detach().mT, dout)
    leaves = [each for each in (x, *rest) if each.requires_grad]
    if not leaves or not w.requires_grad:
        return
    slopes = iter(torch.autograd.grad(w, leaves, dout @ v.mT, allow_unused=True))
    dx = next(slopes) if x.requires_grad else None
    if dx is not None and Q in to:
        _add_product(to[Q], dx, k, call.scale)
    if dx is not None and K in to:
        _add_product(to[K], dx.mT, q, call.scale)
    for place, slope in zip((place for place in to if place > V), slopes, strict=True):
        if slope is not None:
            to[place].add_(slope)


def _add_product(to: Tensor, a: Tensor, b: Tensor, scale: float = 1.0) -> None:
    to.view(-1, *to.shape[2:]).baddbmm_(a.flatten(0, 1), b.flatten(0, 1), alpha=scale)


def _differentiable_gradients(
    call: Call, inputs: Sequence[Tensor], wanted: Sequence[int], dout: Tensor
) -> dict[int, Tensor]:
    """The same with a graph, for second derivatives."""
    own = [x.view_as(x) for x in inputs]  # one tensor may stand at two places
    out = _checkpointed(call, *own)
    slopes = torch.autograd.grad(out, [own[place] for place in wanted], dout, create_graph=True, allow_unused=True)
    return {place: slope for place, slope in zip(wanted, slopes, strict=True) if slope is not None}


def solve_by_newton(x: Tensor, keep: Tensor, alpha: Tensor) -> Tensor:
    """The weights for scores whose visible maximum is 0. From tau = -1 on, where the sum is at least 1, Newton's steps
    go up and never past the solution, because the sum is convex in tau; other orders than 2 and 1.5 are bisected."""
    order = float(alpha) if alpha.ndim == 0 and may_look() else None
    if order not in (2.0, 1.5):
        return entmax.solve_by_bisection(x, keep, alpha)
    z = torch.where(keep, x if order == 2 else x / 2, -2.0)
    tau = torch.full_like(z[..., :1], -1.0)
    rounding = 4 * torch.finfo(z.dtype).eps
    for _ in range(STEPS):
        above = (z - tau).clamp_min_(0)
        if order == 2:
            step = (above.sum(-1, keepdim=True) - 1) / (above > 0).sum(-1, keepdim=True).clamp_min(1)
        else:
            slope = above.sum(-1, keepdim=True)
            step = (torch.linalg.vecdot(above, above)[..., None] - 1) / (2 * slope).clamp_min(0.5)
        tau = tau + step.clamp_min(0)
        if not bool((step > rounding).any()):
            break
    above = (z - tau).clamp_min_(0)
    w = above if order == 2 else above.square()
    total = w.sum(-1, keepdim=True)
    return w / torch.where(total > 0, total, 1.0)
