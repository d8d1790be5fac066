"""The thresholds_cpu backend: sparsemax and entmax with a compiled solver, one block of rows at a time.

    x = scale factor q . k;  w = max((order - 1) x - tau, 0)^(1 / (order - 1)), sum w = 1;  o = w @ v

Matrix products run in torch. The library finds tau for each row in place, and turns gradients of weights into gradients
of scores. Two operators, `keysift::thresholds` and `keysift::thresholds_backward`, make it known to autograd and
torch.compile. Memory is that of one block; the backward pass recomputes the weights of each block.

Letters: B batch, H heads, T queries, S keys, K key width, V value width; N = B H matrices.
"""

import ctypes
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from keysift.kernels import regions
from keysift.kernels.backend import Backend
from keysift.kernels.call import Call
from keysift.kernels.cpu import library, operators
from keysift.kernels.cpu.library import ThresholdRows
from keysift.kernels.eager import dense
from keysift.kernels.schema import schema
from keysift.kernels.transforms import no_double_backward, through_operator
from keysift.mechanisms.rules import Threshold, visible_count
from keysift.mechanisms.spec import Per

PAIRS = 1 << 19  # query-key pairs of a block over its heads: scores and their gradients stay in the CPU cache
MIN_ROWS, MAX_ROWS = 8, 128  # queries of a block


def declines(call: Call, return_weights: bool) -> str | None:
    rule = call.mechanism.rule
    if not isinstance(rule, Threshold):
        return f"it runs sparsemax and entmax only, not {call.mechanism.name}"
    if not isinstance(rule.order, float):
        scalars = [call.mechanism.scalar(name) for name in call.mechanism.scalar_names[rule.order]]
        if any(scalar.per is not Per.HEAD for scalar in scalars):
            return f"the order of {call.mechanism.name} is not one number per head"
    return operators.declines(call, return_weights)


class Inputs(NamedTuple):
    """Inputs of both operators, in the order of their schemas."""

    q: Tensor
    k: Tensor
    v: Tensor
    orders: Tensor  # H
    segments: Tensor | None  # N 6; None: each row is one segment with this offset
    offset: int
    window: int  # 0: none
    scale: float


_INPUTS = schema(Inputs)


def run(call: Call) -> tuple[Tensor, None]:
    q, k, v, scalars = dense.prepare(call)
    rule = call.mechanism.rule
    assert isinstance(rule, Threshold), "declined"
    apply = dense.with_scalars(call.mechanism, scalars)
    if isinstance(rule.order, float):
        orders = q.new_full((call.heads,), rule.order)
    else:
        orders = apply(rule.order).expand(call.heads, 1, 1).reshape(-1)
    if rule.factor is not None:
        q = q * apply(rule.factor, visible_count(regions.visible_counts(call), q))
    inputs = Inputs(q, k, v, orders, *operators.mask_arguments(call), call.scale)
    out: Tensor = _thresholds(*inputs) if through_operator(inputs) else _forward(inputs)
    return dense.finish(call, out, scalars).to(call.v.dtype), None


class Block(NamedTuple):
    """Some queries of some matrices, and the keys they see; the first query sees `visible` of them.

    With a window, it sees the last of these, as many as the window.
    """

    matrices: slice
    rows: slice
    keys: slice
    visible: int


def _blocks(x: Inputs) -> Iterator[Block]:
    batch, heads, queries, _ = x.q.shape
    if x.segments is None:
        yield from _blocks_of_segment(0, batch * heads, 0, queries, 0, x.k.shape[2], x.offset, x.window)
        return
    for row, query, count, key, keys, offset in x.segments.tolist():
        yield from _blocks_of_segment(row * heads, heads, query, count, key, keys, offset, x.window)


def _blocks_of_segment(
    matrix: int, matrices: int, query: int, queries: int, key: int, keys: int, offset: int, window: int
) -> Iterator[Block]:
    visible = min(keys, window + MAX_ROWS) if window else keys
    size = min(MAX_ROWS, max(PAIRS // max(visible, 1), MIN_ROWS))
    for start in range(0, queries, size):
        stop = min(start + size, queries)
        last = min(offset + stop, keys)  # exclusive, of the keys that the last query sees
        first_key = max(offset + start - window + 1, 0) if window else 0
        if last <= first_key:
            continue
        rows, columns = slice(query + start, query + stop), slice(key + first_key, key + last)
        step = max(PAIRS // ((stop - start) * (last - first_key)), 1)
        for first in range(matrix, matrix + matrices, step):
            batch = slice(first, min(first + step, matrix + matrices))
            yield Block(batch, rows, columns, offset + start + 1 - first_key)


class Workspace:
    """Tensors of one call as matrices per head, and the steps that both passes share."""

    def __init__(self, x: Inputs) -> None:
        self.q, self.k, self.v = (each.flatten(0, 1) for each in x[:3])
        self.orders = x.orders.detach().repeat(x.q.shape[0]).contiguous()
        self.scale, self.window = x.scale, x.window

    def score_buffer(self) -> Tensor:
        """Memory for the scores of the largest block."""
        matrices, queries, keys = *self.q.shape[:2], self.k.shape[1]
        return self.q.new_empty(min(matrices * queries * keys, max(PAIRS, MIN_ROWS * keys)))

    def rows(self, block: Block, buffer: Tensor) -> tuple[ThresholdRows, Tensor]:
        """A block as the library reads it, and the part of the buffer that holds its scores."""
        shape = [part.stop - part.start for part in block[:3]]
        x = buffer[: math.prod(shape)].view(shape)
        return ThresholdRows(*shape, block.visible, self.window, self.orders[block.matrices].data_ptr()), x

    def weights(self, block: Block, buffer: Tensor) -> Tensor:
        """The weights of a block, computed in the buffer."""
        rows, x = self.rows(block, buffer)
        q, k = self.q[block.matrices, block.rows], self.k[block.matrices, block.keys]
        torch.baddbmm(x, q, k.mT, beta=0, alpha=self.scale, out=x)
        library.check_status(library.load().keysift_threshold_weigh(ctypes.byref(rows), library.pointer(x)))
        return x


def _forward(x: Inputs) -> Tensor:
    """The output. Queries outside every segment get zeros."""
    work = Workspace(x)
    out = work.q.new_zeros(*work.q.shape[:2], work.v.shape[2])
    buffer = work.score_buffer()
    for block in _blocks(x):
        weights, v = work.weights(block, buffer), work.v[block.matrices, block.keys]
        torch.bmm(weights, v, out=out[block.matrices, block.rows])
    return out.view(*x.q.shape[:3], -1)


@torch.library.custom_op("keysift::thresholds", mutates_args=(), schema=f"({_INPUTS}) -> Tensor")
def _thresholds(*inputs: Any) -> Tensor:
    return _forward(Inputs(*inputs))


@_thresholds.register_fake
def _(*inputs: Any) -> Tensor:
    x = Inputs(*inputs)
    return x.q.new_empty(*x.q.shape[:3], x.v.shape[3])


@torch.library.custom_op(
    "keysift::thresholds_backward",
    mutates_args=(),
    schema=f"(Tensor dout, bool order_grad, {_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _thresholds_backward(dout: Tensor, order_grad: bool, *inputs: Any) -> tuple[Tensor, ...]:
    """Gradients of q, k, v and, if order_grad, of the orders."""
    x = Inputs(*inputs)
    work, dout_NTV = Workspace(x), dout.flatten(0, 1)
    dq, dk, dv = (each.new_zeros(each.shape) for each in (work.q, work.k, work.v))
    dorders = torch.zeros(len(work.orders), dtype=torch.float64)
    w_buffer, dx_buffer = work.score_buffer(), work.score_buffer()
    for block in _blocks(x):
        batch, queries, keys, _ = block
        w, q, k = work.weights(block, w_buffer), work.q[batch, queries], work.k[batch, keys]
        dv[batch, keys].baddbmm_(w.mT, dout_NTV[batch, queries])
        rows, dx = work.rows(block, dx_buffer)
        torch.bmm(dout_NTV[batch, queries], work.v[batch, keys].mT, out=dx)
        slopes = torch.empty(len(w), dtype=torch.float64) if order_grad else None
        pointers = [library.pointer(tensor) for tensor in (w, dx, slopes)]
        library.check_status(library.load().keysift_threshold_differentiate(ctypes.byref(rows), *pointers))
        if slopes is not None:
            dorders[batch] += slopes
        dq[batch, queries].baddbmm_(dx, k, alpha=work.scale)
        dk[batch, keys].baddbmm_(dx.mT, q, alpha=work.scale)
    return *(d.view(each.shape) for d, each in zip((dq, dk, dv), x[:3], strict=True)), _sum_over_batch(dorders, x)


def _sum_over_batch(dorders: Tensor, x: Inputs) -> Tensor:
    return dorders.view(x.q.shape[:2]).sum(0).to(x.orders.dtype)


@_thresholds_backward.register_fake
def _(dout: Tensor, order_grad: bool, *inputs: Any) -> tuple[Tensor, ...]:
    x = Inputs(*inputs)
    return tuple(each.new_empty(each.shape) for each in x[:4])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.offset, ctx.window, ctx.scale = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    order_grad = ctx.needs_input_grad[3]
    *grads, dorders = _thresholds_backward(dout, order_grad, *ctx.saved_tensors, ctx.offset, ctx.window, ctx.scale)
    return *grads, dorders if order_grad else None, None, None, None, None


_thresholds.register_autograd(_differentiate, setup_context=_save)
_thresholds_backward.register_autograd(no_double_backward)

BACKEND = Backend(
    name="thresholds_cpu",
    about="compiled solver for sparsemax and entmax, one block of rows at a time; memory is linear in keys",
    run=run,
    unavailable=library.unavailable,
    declines=declines,
    blocked=True,
    small_forward=True,
)
