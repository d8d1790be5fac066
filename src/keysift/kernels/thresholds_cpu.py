"""Sparsemax and entmax through a compiled solver: products by torch, a block of rows at a time, thresholds in place.

    x = scale q . k;  w = max((order - 1) x - tau, 0)^(1 / (order - 1)), sum w = 1;  o = w @ v

The library finds tau row by row while the row is in cache, and turns gradients of weights into gradients of scores. Two
operators, `keysift::thresholds` and `keysift::thresholds_backward`, registered with torch so that autograd and
torch.compile know them. Memory is that of one block; the backward pass computes the weights of each block anew.

Letters: B batch, H heads, T queries, S keys, K key width, V value width; N = B H matrices.
"""

import ctypes
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from keysift.kernels import compiled, dense, native
from keysift.kernels.call import Call
from keysift.kernels.native import ThresholdRows
from keysift.mechanisms.rules import Threshold
from keysift.mechanisms.spec import Per

PAIRS = 1 << 19  # pairs of queries and keys of a block, over its heads: scores and their gradients stay in cache
FEWEST, ROWS = 8, 128  # queries of a block


def declines(call: Call, return_weights: bool) -> str | None:
    rule = call.mechanism.rule
    if not isinstance(rule, Threshold):
        return f"it solves for thresholds, and {call.mechanism.name} has none"
    if not isinstance(rule.order, float):
        wants = [call.mechanism.scalar(name) for name in call.mechanism.wants[rule.order]]
        if any(scalar.per is not Per.HEAD for scalar in wants):
            return f"the order of {call.mechanism.name} is not one number a head"
    return compiled.declines(call, return_weights)


class Inputs(NamedTuple):
    """What both operators read, in the order of their schemas."""

    q: Tensor
    k: Tensor
    v: Tensor
    orders: Tensor  # H
    pieces: Tensor | None  # N 6, or each row is one piece, of this offset
    offset: int
    scale: float


_INPUTS = compiled.schema(Inputs)


def run(call: Call) -> tuple[Tensor, None]:
    q, k, v, scalars = dense.prepare(call)
    rule = call.mechanism.rule
    assert isinstance(rule, Threshold), "declined"
    if isinstance(rule.order, float):
        orders = q.new_full((call.heads,), rule.order)
    else:
        orders = dense.applying(call.mechanism, scalars)(rule.order).expand(call.heads, 1, 1).reshape(-1)
    inputs = Inputs(q, k, v, orders, *compiled.standing(call), call.scale)
    learning = torch.is_grad_enabled() and any(x.requires_grad for x in inputs[:4])
    out: Tensor = _thresholds(*inputs) if learning or torch.compiler.is_compiling() else _forward(inputs)
    return dense.finish(call.mechanism, out, scalars).to(call.v.dtype), None


class Block(NamedTuple):
    """Some queries of some matrices, and the keys that the last query sees; the first sees `seen` of them."""

    matrices: slice
    rows: slice
    keys: slice
    seen: int


def _blocks(x: Inputs) -> Iterator[Block]:
    batch, heads, queries, _ = x.q.shape
    if x.pieces is None:
        yield from _of_piece(0, batch * heads, 0, queries, 0, x.k.shape[2], x.offset)
        return
    for row, *piece in x.pieces.tolist():
        yield from _of_piece(row * heads, heads, *piece)


def _of_piece(
    matrix: int, matrices: int, query: int, queries: int, key: int, keys: int, offset: int
) -> Iterator[Block]:
    size = min(ROWS, max(PAIRS // max(keys, 1), FEWEST))
    for start in range(0, queries, size):
        stop = min(start + size, queries)
        seen = min(offset + stop, keys)  # by the last
        if seen <= 0:
            continue
        rows, columns = slice(query + start, query + stop), slice(key, key + seen)
        together = max(PAIRS // ((stop - start) * seen), 1)
        for first in range(matrix, matrix + matrices, together):
            some = slice(first, min(first + together, matrix + matrices))
            yield Block(some, rows, columns, offset + start + 1)


class Work:
    """Both passes over one call: matrices of all heads, and room for one block's scores."""

    def __init__(self, x: Inputs) -> None:
        self.q, self.k, self.v = (each.flatten(0, 1) for each in x[:3])
        self.orders = x.orders.detach().repeat(x.q.shape[0]).contiguous()
        self.scale = x.scale

    def room(self) -> Tensor:
        matrices, queries, keys = *self.q.shape[:2], self.k.shape[1]
        return self.q.new_empty(min(matrices * queries * keys, max(PAIRS, FEWEST * keys)))

    def rows(self, block: Block, room: Tensor) -> tuple[ThresholdRows, Tensor]:
        """How the library is told of a block, and the part of the room where it is."""
        shape = [part.stop - part.start for part in block[:3]]
        x = room[: math.prod(shape)].view(shape)
        return ThresholdRows(*shape, block.seen, self.orders[block.matrices].data_ptr()), x

    def weights(self, block: Block, room: Tensor) -> Tensor:
        rows, x = self.rows(block, room)
        q, k = self.q[block.matrices, block.rows], self.k[block.matrices, block.keys]
        torch.baddbmm(x, q, k.mT, beta=0, alpha=self.scale, out=x)
        native.check(native.library().keysift_threshold_weigh(ctypes.byref(rows), native.pointer(x)))
        return x


def _forward(x: Inputs) -> Tensor:
    """Queries that no piece holds see nothing: zeros."""
    work = Work(x)
    out = work.q.new_zeros(*work.q.shape[:2], work.v.shape[2])
    room = work.room()
    for block in _blocks(x):
        weights, v = work.weights(block, room), work.v[block.matrices, block.keys]
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
    schema=f"(Tensor dout, bool learned, {_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _thresholds_backward(dout: Tensor, learned: bool, *inputs: Any) -> tuple[Tensor, ...]:
    """Gradients of q, k, v and, where learned, of the orders."""
    x = Inputs(*inputs)
    work, towards = Work(x), dout.flatten(0, 1)
    dq, dk, dv = (each.new_zeros(each.shape) for each in (work.q, work.k, work.v))
    dorders = torch.zeros(len(work.orders), dtype=torch.float64)
    rooms = work.room(), work.room()
    for block in _blocks(x):
        some, queries, keys, _ = block
        w, q, k = work.weights(block, rooms[0]), work.q[some, queries], work.k[some, keys]
        dv[some, keys].baddbmm_(w.mT, towards[some, queries])
        rows, dx = work.rows(block, rooms[1])
        torch.bmm(towards[some, queries], work.v[some, keys].mT, out=dx)
        slopes = torch.empty(len(w), dtype=torch.float64) if learned else None
        pointers = [native.pointer(each) for each in (w, dx, slopes)]
        native.check(native.library().keysift_threshold_differentiate(ctypes.byref(rows), *pointers))
        if slopes is not None:
            dorders[some] += slopes
        dq[some, queries].baddbmm_(dx, k, alpha=work.scale)
        dk[some, keys].baddbmm_(dx.mT, q, alpha=work.scale)
    return *(d.view(each.shape) for d, each in zip((dq, dk, dv), x[:3], strict=True)), _by_head(dorders, x)


def _by_head(dorders: Tensor, x: Inputs) -> Tensor:
    return dorders.view(x.q.shape[:2]).sum(0).to(x.orders.dtype)


@_thresholds_backward.register_fake
def _(dout: Tensor, learned: bool, *inputs: Any) -> tuple[Tensor, ...]:
    x = Inputs(*inputs)
    return tuple(each.new_empty(each.shape) for each in x[:4])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.offset, ctx.scale = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    learned = ctx.needs_input_grad[3]
    *found, dorders = _thresholds_backward(dout, learned, *ctx.saved_tensors, ctx.offset, ctx.scale)
    return *found, dorders if learned else None, None, None, None


_thresholds.register_autograd(_differentiate, setup_context=_keep)
_thresholds_backward.register_autograd(compiled.only_once)
