"""The rectified_cpu backend: max(0, softmax(x) - level) in the compiled kernel for additive mechanisms.

    p = softmax(x);  o = sum max(0, p - level) v

The kernel keeps the scores of 32 queries until their normaliser is known, so that products with keys are computed once.
The forward pass also sums the values with positive weight, u. With them the backward pass is a single pass:

    dx = p ([p > level] dout . v - dout . (o + level u)),   dlevel = -dout . u

Two operators, `keysift::rectified` and `keysift::rectified_backward`, make it known to autograd and torch.compile.

Letters: B batch, H heads, T queries, V value width.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from keysift.kernels import regions
from keysift.kernels.backend import Backend
from keysift.kernels.call import Call
from keysift.kernels.cpu import library, operators
from keysift.kernels.cpu.library import View
from keysift.kernels.cpu.sums import RECTIFIED, Inputs, backward_pass, problem_of
from keysift.kernels.eager import dense
from keysift.kernels.schema import schema
from keysift.kernels.transforms import no_double_backward, through_operator
from keysift.mechanisms import minus_constant
from keysift.mechanisms.rules import Rectified, Rule, visible_count

# The kernel needs levels of at least 0, which these rules have: otherwise masked keys would have weight.
RULES: frozenset[Rule] = frozenset({minus_constant.ELASTIC_SOFTMAX.rule, minus_constant.CLIPPED_SOFTMAX.rule})
_INPUTS = schema(Inputs)


def declines(call: Call, return_weights: bool) -> str | None:
    if call.mechanism.rule not in RULES:
        return f"it does not implement {call.mechanism.name}"
    return operators.declines(call, return_weights)


def run(call: Call) -> tuple[Tensor, None]:
    rule = call.mechanism.rule
    assert isinstance(rule, Rectified), "declined"
    assert rule.softmax.level is not None, "of every rule in RULES"
    q, k, v, scalars = dense.prepare(call)
    apply = dense.with_scalars(call.mechanism, scalars)
    count = visible_count(regions.visible_counts(call), q)
    level = apply(rule.softmax.level, count).expand(*q.shape[:3], 1)[..., 0].contiguous()
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    inputs = Inputs(q, k, v, level, *operators.mask_arguments(call), RECTIFIED, call.scale, 0.0)
    out: Tensor = _rectified(*inputs)[0] if through_operator(inputs) else _forward(inputs, with_gradients=False)[0]
    if rule.softmax.gain is not None:
        out = apply(rule.softmax.gain) * out
    return dense.finish(call, out, scalars).to(call.v.dtype), None


def _forward(x: Inputs, *, with_gradients: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The output; the sum u and the numbers of each row's softmax, empty without gradients. Queries outside every
    segment get zeros."""
    empty = torch.empty if x.segments is None else torch.zeros
    shape = (*x.q.shape[:3], x.v.shape[3])
    out = empty(shape)
    kept, log = (empty(shape), empty(2, *x.q.shape[:3])) if with_gradients else (torch.empty(0), torch.empty(0))
    library.check_status(
        library.load().keysift_sums_forward(
            ctypes.byref(problem_of(x)),
            ctypes.byref(View.of(out)),
            ctypes.byref(View.of(kept)) if with_gradients else None,
            library.pointer(log) if with_gradients else None,
        )
    )
    return out, kept, log


@torch.library.custom_op("keysift::rectified", mutates_args=(), schema=f"({_INPUTS}) -> (Tensor, Tensor, Tensor)")
def _rectified(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _forward(Inputs(*inputs), with_gradients=True)


@_rectified.register_fake
def _(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    x = Inputs(*inputs)
    out = x.q.new_empty(*x.q.shape[:3], x.v.shape[3])
    return out, torch.empty_like(out), x.q.new_empty(2, *x.q.shape[:3])


@torch.library.custom_op(
    "keysift::rectified_backward",
    mutates_args=(),
    schema=f"(Tensor dout, Tensor centre, Tensor log, {_INPUTS}) -> (Tensor, Tensor, Tensor)",
)
def _rectified_backward(dout: Tensor, centre: Tensor, log: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    """Gradients of q, k and v; `centre` is o + level u."""
    return backward_pass(Inputs(*inputs), dout, centre, log)[:3]


@_rectified_backward.register_fake
def _(dout: Tensor, centre: Tensor, log: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    x = Inputs(*inputs)
    return tuple(t.new_empty(t.shape) for t in (x.q, x.k, x.v))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output, *inputs[:5])
    ctx.constants = inputs[5:]


def _differentiate(ctx: Any, dout: Tensor, *unused: Tensor) -> tuple[Any, ...]:
    out, kept, log, *tensors = ctx.saved_tensors
    x = Inputs(*tensors, *ctx.constants)
    assert x.shift is not None, "the levels"
    dq, dk, dv = _rectified_backward(dout, out + x.shift[..., None] * kept, log, *x)
    return (dq, dk, dv, -(dout * kept).sum(-1), *[None] * (len(x) - 4))


_rectified.register_autograd(_differentiate, setup_context=_save)
_rectified_backward.register_autograd(no_double_backward)

BACKEND = Backend(
    name="rectified_cpu",
    about="compiled kernel for softmax minus a level, clipped at zero; memory is linear in queries and keys",
    run=run,
    unavailable=library.unavailable,
    declines=declines,
    min_queries=16,
)
