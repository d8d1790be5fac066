"""The by_rows backend: every mechanism in plain torch, one block of whole rows at a time.

A block of queries has the scores of all keys that it may see, as row-wise rules require. Memory is O(S) and not
O(T x S). Only inputs are saved for backward, which recomputes each block, differentiates the rule with autograd and
adds the gradients of keys and values in place.

Threshold rules find tau by Newton's method instead of sorting every row. All other rules run their dense definition.

Letters: B batch, H heads, M maps, T queries, S keys, K key width, V value width.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from keysift.kernels.backend import Backend
from keysift.kernels.call import Call, has_tangents, slice_pairs
from keysift.kernels.eager import dense
from keysift.kernels.eager.blockwise import slice_scalar
from keysift.kernels.regions import query_blocks
from keysift.kernels.transforms import can_inspect_values, in_function_transform
from keysift.mechanisms import entmax
from keysift.mechanisms.rules import Threshold, visible_count

PAIRS = 1 << 20  # query-key pairs of a block, over batch and heads; small enough for the CPU cache
NEWTON_STEPS = 50
Q, K, V = 0, 1, 2  # indices of the inputs; scalars follow, then the bias


def declines(call: Call, return_weights: bool) -> str | None:
    if return_weights:
        return "it never forms all weights at once"
    if in_function_transform():
        return "it recomputes rows in its backward pass, which torch.func cannot transform"
    if has_tangents(call):
        return "it has no forward-mode derivative"
    return None


def run(call: Call) -> tuple[Tensor, None]:
    q, k, v, scalars = dense.prepare(call)
    inputs = (q, k, v, *scalars.values(), *(() if call.bias is None else (call.bias,)))
    # A compiled graph does not support a backward pass that calls autograd.
    compute = _checkpointed if torch.compiler.is_compiling() else _ByRows.apply
    out = compute(call, *inputs)
    return dense.finish(call, out, scalars).to(call.v.dtype), None


def _blocks(call: Call) -> Iterator[tuple[slice, slice]]:
    matrices, keys = call.q.shape[0] * call.q.shape[1], call.k.shape[2]
    most = call.q.shape[2]
    if call.window is not None:  # a block of as many queries as the window has keys reaches twice as many keys
        most = max(call.window, 64)
        keys = min(keys, 2 * most)
    return query_blocks(call, min(max(PAIRS // (matrices * keys), 8), most))


def _view(call: Call, index: int, x: Tensor, rows: slice, keys: slice) -> Tensor:
    """Slice of input number `index`, or of its gradient, that belongs to a block."""
    if index <= V:
        return x[:, :, rows if index == Q else keys]
    names = list(call.scalars)[index - 3 :]
    return slice_scalar(call, names[0], x, rows, keys, None) if names else slice_pairs(x, rows, keys)


def _views(call: Call, inputs: Sequence[Tensor], rows: slice, keys: slice) -> list[Tensor]:
    return [_view(call, index, x, rows, keys) for index, x in enumerate(inputs)]


def _weigh(call: Call, rows: slice, keys: slice, x: Tensor, rest: Sequence[Tensor]) -> Tensor:
    """Weights B H T S of a block with scores x, B (H M) T S. `rest` holds its scalars, then its bias if any."""
    visible, rule = call.visible(rows, keys), call.mechanism.rule
    maps = x.view(x.shape[0], call.heads, -1, *x.shape[2:])
    if call.bias is not None or call.slopes is not None:
        bias = rest[-1] if call.bias is not None else None
        maps = torch.stack([call.add_biases(each, visible, bias) for each in maps.unbind(2)], dim=2)
    scalars = dict(zip(call.scalars, rest, strict=False))
    if isinstance(rule, Threshold):
        apply = dense.with_scalars(call.mechanism, scalars)
        order = rule.order if isinstance(rule.order, float) else apply(rule.order)
        masked = torch.where(visible.keep_BHTS, maps[:, :, 0], 0.0)
        if rule.factor is not None:
            masked = apply(rule.factor, visible_count(visible.count_BHT1, masked)) * masked
        return entmax.weigh_with_solver(masked, visible.keep_BHTS, order, solve_by_newton)
    return dense.weigh(call.mechanism, maps.unbind(2), visible, scalars)


def _checkpointed(call: Call, *inputs: Tensor) -> Tensor:
    """Forward with torch.utils.checkpoint per block, for compiled graphs and second derivatives."""

    def block(rows: slice, keys: slice, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> Tensor:
        return _weigh(call, rows, keys, call.scale * (q @ k.mT), rest) @ v

    blocks = [
        checkpoint(block, rows, keys, *_views(call, inputs, rows, keys), use_reentrant=False)
        for rows, keys in _blocks(call)
    ]
    return torch.cat(blocks, dim=2)


def _without_data(call: Call) -> Call:
    """A copy of the call with shapes, names and masks only, so that ctx does not keep its tensors alive."""

    def empty_like(x: Tensor) -> Tensor:
        return x.new_empty(()).expand(x.shape)

    return replace(
        call,
        q=empty_like(call.q),
        k=empty_like(call.k),
        v=empty_like(call.v),
        bias=None if call.bias is None else empty_like(call.bias),
        scalars={name: empty_like(x) for name, x in call.scalars.items()},
    )


class _ByRows(torch.autograd.Function):
    """Attention in blocks of rows. The backward pass recomputes each block."""

    @staticmethod
    def forward(ctx: Any, call: Call, *inputs: Tensor) -> Tensor:
        ctx.call = _without_data(call)
        ctx.save_for_backward(*inputs)
        out = inputs[0].new_empty(call.q.shape[0], call.heads, call.q.shape[2], call.v.shape[3])
        with _no_autocast(out):
            for rows, keys in _blocks(call):
                q, k, v, *rest = _views(call, inputs, rows, keys)
                out[:, :, rows] = _weigh(call, rows, keys, call.scale * (q @ k.mT), rest) @ v
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs: tuple[Tensor, ...] = ctx.saved_tensors
        indices = [index for index in range(len(inputs)) if ctx.needs_input_grad[1 + index]]
        differentiate = _differentiable_gradients if torch.is_grad_enabled() else _gradients
        gradients = differentiate(ctx.call, inputs, indices, grads[0])
        return None, *(gradients.get(index) for index in range(len(inputs)))


def _no_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Disable autocast. It is off in backward, which must recompute the same values, so forward disables it too."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def _gradients(call: Call, inputs: Sequence[Tensor], indices: Sequence[int], dout: Tensor) -> dict[int, Tensor]:
    """Gradients of the inputs at `indices`, by index."""
    sums = {index: torch.zeros_like(inputs[index], memory_format=torch.contiguous_format) for index in indices}
    with _no_autocast(dout):
        for rows, keys in _blocks(call):
            views = {index: _view(call, index, total, rows, keys) for index, total in sums.items()}
            _add_gradients(call, rows, keys, _views(call, inputs, rows, keys), dout[:, :, rows], views)
    return sums


def _add_gradients(
    call: Call, rows: slice, keys: slice, inputs: Sequence[Tensor], dout: Tensor, grads: Mapping[int, Tensor]
) -> None:
    """Add the gradients of one block to `grads`, in place.

    Only the rule uses autograd. The products q k^T and w v are differentiated by hand, because autograd would allocate
    full-length gradients of k and v in every block.
    """
    q, k, v, *rest = inputs
    x = (call.scale * (q @ k.mT)).requires_grad_(Q in grads or K in grads)
    rest = [tensor.detach().requires_grad_(index in grads) for index, tensor in enumerate(rest, 3)]
    with torch.enable_grad():
        w = _weigh(call, rows, keys, x, rest)
    if V in grads:
        _add_product(grads[V], w.detach().mT, dout)
    leaves = [leaf for leaf in (x, *rest) if leaf.requires_grad]
    if not leaves or not w.requires_grad:
        return
    gradients = iter(torch.autograd.grad(w, leaves, dout @ v.mT, allow_unused=True))
    dx = next(gradients) if x.requires_grad else None
    if dx is not None and Q in grads:
        _add_product(grads[Q], dx, k, call.scale)
    if dx is not None and K in grads:
        _add_product(grads[K], dx.mT, q, call.scale)
    for index, gradient in zip((index for index in grads if index > V), gradients, strict=True):
        if gradient is not None:
            grads[index].add_(gradient)


def _add_product(total: Tensor, a: Tensor, b: Tensor, scale: float = 1.0) -> None:
    total.view(-1, *total.shape[2:]).baddbmm_(a.flatten(0, 1), b.flatten(0, 1), alpha=scale)


def _differentiable_gradients(
    call: Call, inputs: Sequence[Tensor], indices: Sequence[int], dout: Tensor
) -> dict[int, Tensor]:
    """The same gradients with an autograd graph, for second derivatives."""
    views = [x.view_as(x) for x in inputs]  # distinct tensors, because the same tensor may be passed as several inputs
    out = _checkpointed(call, *views)
    gradients = torch.autograd.grad(out, [views[i] for i in indices], dout, create_graph=True, allow_unused=True)
    return {index: gradient for index, gradient in zip(indices, gradients, strict=True) if gradient is not None}


def solve_by_newton(x: Tensor, keep: Tensor, alpha: Tensor) -> Tensor:
    """Entmax weights of scores with visible maximum 0: Newton's method for alpha 2 and 1.5, bisection otherwise.

    At tau = -1 the weights sum to at least 1. The sum is convex in tau, so each Newton step increases tau without
    overshooting.
    """
    order = float(alpha) if alpha.ndim == 0 and can_inspect_values() else None
    if order not in (2.0, 1.5):
        return entmax.solve_by_bisection(x, keep, alpha)
    z = torch.where(keep, x if order == 2 else x / 2, -2.0)
    tau = torch.full_like(z[..., :1], -1.0)
    tolerance = 4 * torch.finfo(z.dtype).eps
    for _ in range(NEWTON_STEPS):
        above = (z - tau).clamp_min_(0)
        if order == 2:
            step = (above.sum(-1, keepdim=True) - 1) / (above > 0).sum(-1, keepdim=True).clamp_min(1)
        else:
            slope = above.sum(-1, keepdim=True)
            step = (torch.linalg.vecdot(above, above)[..., None] - 1) / (2 * slope).clamp_min(0.5)
        tau = tau + step.clamp_min(0)
        if not bool((step > tolerance).any()):
            break
    above = (z - tau).clamp_min_(0)
    w = above if order == 2 else above.square()
    total = w.sum(-1, keepdim=True)
    return w / torch.where(total > 0, total, 1.0)


BACKEND = Backend(
    name="by_rows",
    about="plain torch, one block of whole rows at a time, for every mechanism; memory is linear in keys",
    run=run,
    declines=declines,
    blocked=True,
)
