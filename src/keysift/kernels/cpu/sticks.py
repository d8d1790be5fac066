"""The sticks_cpu backend: a compiled kernel for stick-breaking attention, from the newest key to the oldest.

It stops where nothing is left that fp32 could represent. Two operators, `keysift::sticks` and
`keysift::sticks_backward`, make it known to autograd and torch.compile. The backward pass runs from the oldest key that
was read to the newest, with the sums of logarithms of the forward pass.

Letters: B batch, H heads, T queries, S keys, K key width, V value width.
"""

import ctypes
from typing import Any, NamedTuple

import torch
from torch import Tensor

from keysift.kernels.backend import Backend
from keysift.kernels.call import Call
from keysift.kernels.cpu import library, operators
from keysift.kernels.cpu.library import SticksGradients, SticksProblem, View
from keysift.kernels.eager import dense
from keysift.kernels.regions import own_keys, visible_counts
from keysift.kernels.schema import schema
from keysift.kernels.transforms import no_double_backward, through_operator
from keysift.mechanisms import stick_breaking
from keysift.mechanisms.rules import StickBreaking

MIN_QUERIES = 16  # a block has 64; below this, plain torch is faster


def declines(call: Call, return_weights: bool) -> str | None:
    rule = call.mechanism.rule
    if not isinstance(rule, StickBreaking) or rule.shares is not stick_breaking.shares:
        return f"it does not implement {call.mechanism.name}"
    return operators.declines(call, return_weights)


class Inputs(NamedTuple):
    """Inputs of both operators, in the order of their schemas."""

    q: Tensor
    k: Tensor
    v: Tensor
    segments: Tensor | None  # N 6; None: each row is one segment with this offset
    offset: int
    window: int  # 0: none
    scale: float


_INPUTS = schema(Inputs)


def run(call: Call) -> tuple[Tensor, None]:
    q, k, v, scalars = dense.prepare(call, adds_rest=True)
    rule = call.mechanism.rule
    assert isinstance(rule, StickBreaking), "declined"
    segments, offset, window = operators.mask_arguments(call)
    own = own_keys(segments, offset, q, v.shape[2]) if rule.rest_to_own else None
    if not rule.own_takes:
        segments, offset, window = _without_own_key(segments, offset, window, q.shape[2])
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    inputs = Inputs(q, k, v, segments, offset, window, call.scale)
    out, rest, *_ = _sticks(*inputs) if through_operator(inputs) else _forward(inputs)
    if own is not None:
        key_B1T, seen_B1T = own
        values = v.take_along_dim(key_B1T[..., None], dim=2)
        out = out + torch.where(seen_B1T, rest, 0.0)[..., None] * values
    if call.mechanism.rest_value is not None:
        rest = torch.where(visible_counts(call)[..., 0] > 0, rest, 0.0)
        out = out + rest[..., None] * scalars[call.mechanism.rest_value]
    return dense.finish(call, out, scalars, adds_rest=True).to(call.v.dtype), None


def _without_own_key(segments: Tensor | None, offset: int, window: int, queries: int) -> tuple[Tensor | None, int, int]:
    if window == 1:  # no key is left: every query comes before the first one
        segments = None if segments is None else torch.cat((segments[:, :5], -segments[:, 2:3]), dim=1)
        return segments, -queries, 0
    if segments is not None:
        segments = torch.cat((segments[:, :5], segments[:, 5:] - 1), dim=1)
    return segments, offset - 1, window - 1 if window else 0


def _problem(x: Inputs) -> SticksProblem:
    return SticksProblem(
        *(*x.q.shape[:3], x.k.shape[2], x.q.shape[3], x.v.shape[3]),
        *(x.window, x.scale),
        *(View.of(x.q), View.of(x.k), View.of(x.v)),
        *((None, -1) if x.segments is None else (x.segments.data_ptr(), len(x.segments))),
        x.offset,
    )


def _forward(x: Inputs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The output, the rest, its logarithm in fp64, and the first key that was read. Queries without keys get zeros."""
    shape = x.q.shape[:3]
    out = torch.zeros(*shape, x.v.shape[3])
    log_rest, first_key = torch.full(shape, -torch.inf, dtype=torch.float64), torch.zeros(shape, dtype=torch.int64)
    problem = _problem(x)
    library.check_status(
        library.load().keysift_sticks_forward(
            ctypes.byref(problem), ctypes.byref(View.of(out)), library.pointer(log_rest), library.pointer(first_key)
        )
    )
    return out, log_rest.exp().float(), log_rest, first_key


@torch.library.custom_op("keysift::sticks", mutates_args=(), schema=f"({_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)")
def _sticks(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _forward(Inputs(*inputs))


@_sticks.register_fake
def _(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x = Inputs(*inputs)
    shape = x.q.shape[:3]
    rest, log_rest, first_key = (x.q.new_empty(shape, dtype=d) for d in (torch.float32, torch.float64, torch.int64))
    return x.q.new_empty(*shape, x.v.shape[3]), rest, log_rest, first_key


@torch.library.custom_op(
    "keysift::sticks_backward",
    mutates_args=(),
    schema=f"(Tensor dout, Tensor drest, Tensor log_rest, Tensor first_key, {_INPUTS}) -> (Tensor, Tensor, Tensor)",
)
def _sticks_backward(
    dout: Tensor, drest: Tensor, log_rest: Tensor, first_key: Tensor, *inputs: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    x = Inputs(*inputs)
    dout, drest = dout if dout.stride(-1) == 1 else dout.contiguous(), drest.contiguous()
    dq, dk, dv = (torch.zeros(t.shape) for t in (x.q, x.k, x.v))
    gradients = SticksGradients(View.of(dq), View.of(dk), View.of(dv))
    problem = _problem(x)
    library.check_status(
        library.load().keysift_sticks_backward(
            ctypes.byref(problem),
            library.pointer(log_rest),
            library.pointer(first_key),
            ctypes.byref(View.of(dout)),
            library.pointer(drest),
            ctypes.byref(gradients),
        )
    )
    return dq, dk, dv


@_sticks_backward.register_fake
def _(dout: Tensor, drest: Tensor, log_rest: Tensor, first_key: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    x = Inputs(*inputs)
    return tuple(t.new_empty(t.shape) for t in (x.q, x.k, x.v))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.offset, ctx.window, ctx.scale = inputs
    ctx.save_for_backward(*output[2:], *tensors)
    ctx.mark_non_differentiable(*output[2:])


def _differentiate(ctx: Any, dout: Tensor, drest: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
    gradients = _sticks_backward(dout, drest, *ctx.saved_tensors, ctx.offset, ctx.window, ctx.scale)
    return *gradients, None, None, None, None


_sticks.register_autograd(_differentiate, setup_context=_save)
_sticks_backward.register_autograd(no_double_backward)

BACKEND = Backend(
    name="sticks_cpu",
    about="compiled kernel for stick-breaking, newest key first; memory grows with queries only",
    run=run,
    unavailable=library.unavailable,
    declines=declines,
    min_queries=MIN_QUERIES,
)
