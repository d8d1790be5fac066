"""The sums_cpu backend: a compiled kernel for additive mechanisms, with running sums over blocks of keys.

    x = scale q . k + shift
    o = sum top(x) v / (sum bottom(x) + eps), divided by a divisor; minus a share of the same of a second map

It runs the mechanisms whose rule is in `KINDS`. Two operators, `keysift::sums` and `keysift::sums_backward`, make it
known to autograd and torch.compile.

Letters: B batch, H heads, T queries, S keys, K key width, V value width.
"""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from keysift.kernels import regions
from keysift.kernels.backend import Backend
from keysift.kernels.call import Call
from keysift.kernels.cpu import library, operators
from keysift.kernels.cpu.library import SumsGradients, SumsProblem, View
from keysift.kernels.eager import dense
from keysift.kernels.schema import schema
from keysift.kernels.transforms import no_double_backward, through_operator
from keysift.mechanisms import relu_exp, relu_power, sigmoid, threshold
from keysift.mechanisms.rules import Counted, Rule, visible_count

# keysift_kind
_RELU, _RELU_SQUARED, _RELU_EXP, _SIGMOID, _RELU_EXP_NORMALISED, _SOFTPICK, RECTIFIED, DECAYED = range(8)

PerQuery = Callable[[Call, Mapping[str, Tensor]], Tensor]  # broadcastable to B H T 1


def _visible_keys(call: Call, scalars: Mapping[str, Tensor]) -> Tensor:
    return visible_count(regions.visible_counts(call), call.q.new_zeros((), dtype=torch.float32))


def _length(call: Call, scalars: Mapping[str, Tensor]) -> Tensor:
    return scalars["length"]


def _minus_threshold(call: Call, scalars: Mapping[str, Tensor]) -> Tensor:
    return -threshold.threshold(_visible_keys(call, scalars), beta=scalars["beta"], width=scalars["width"])


@dataclass(frozen=True)
class Kind:
    """What the kernel sums (a keysift_kind), what it adds to the scores and to the denominator, and the divisor."""

    code: int
    shift: PerQuery | None = None
    divisor: PerQuery | None = None
    eps: float = 0.0


KINDS: dict[Rule, Kind] = {
    relu_power.RELU.rule: Kind(_RELU, divisor=_length),
    relu_power.RELU_SQUARED.rule: Kind(_RELU_SQUARED, divisor=_length),
    relu_power.RELU_VISIBLE.rule: Kind(_RELU, divisor=_visible_keys),
    relu_power.RELA.rule: Kind(_RELU),
    relu_exp.RELU_EXP.rule: Kind(_RELU_EXP),
    relu_exp.RELU_EXP_NORMALISED.rule: Kind(_RELU_EXP_NORMALISED),
    relu_exp.SOFTPICK.rule: Kind(_SOFTPICK, eps=relu_exp.EPS),
    threshold.TRA.rule: Kind(_RELU_SQUARED, shift=_minus_threshold),
    threshold.TDA.rule: Kind(_RELU_SQUARED, shift=_minus_threshold),
    sigmoid.SIGMOID.rule: Kind(_SIGMOID, shift=lambda call, scalars: scalars["bias"]),
    sigmoid.SIGMOID_VISIBLE.rule: Kind(_SIGMOID, shift=lambda call, scalars: -_visible_keys(call, scalars).log()),
}


def declines(call: Call, return_weights: bool) -> str | None:
    if call.mechanism.rule not in KINDS:
        return f"it does not implement {call.mechanism.name}"
    return operators.declines(call, return_weights)


class Inputs(NamedTuple):
    """Inputs of both operators, in the order of their schemas."""

    q: Tensor
    k: Tensor
    v: Tensor
    shift: Tensor | None  # B H T
    segments: Tensor | None  # N 6; None: each row is one segment with this offset
    offset: int
    window: int  # 0: none
    kind: int
    scale: float
    eps: float


_INPUTS = schema(Inputs)


def run(call: Call) -> tuple[Tensor, None]:
    return run_with(call, dense.prepare(call), lambda inputs: _forward(inputs)[0]), None


Prepared = tuple[Tensor, Tensor, Tensor, Mapping[str, Tensor]]


def run_with(call: Call, prepared: Prepared, forward: Callable[[Inputs], Tensor]) -> Tensor:
    """The output from q, k, v and scalars that are prepared. `forward` runs if neither autograd nor a compiler does."""
    kind = KINDS[call.mechanism.rule]
    q, k, v, scalars = prepared
    maps = call.mechanism.maps
    v = dense.repeat_heads(v, maps)  # maps run as heads of one call
    shift = None
    if kind.shift is not None:
        each_head = kind.shift(call, scalars).expand(q.shape[0], call.heads, q.shape[2], 1)
        shift = dense.repeat_heads(each_head, maps)[..., 0].contiguous()
    segments, offset, window = operators.mask_arguments(call)
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    inputs = Inputs(q, k, v, shift, segments, offset, window, kind.code, call.scale, kind.eps)
    out: Tensor = sums_operator(*inputs)[0] if through_operator(inputs) else forward(inputs)
    if maps > 1:
        out = _difference(call, out, scalars)
    if kind.divisor is not None:
        out = out / kind.divisor(call, scalars)
    return dense.finish(call, out, scalars).to(call.v.dtype)


def _difference(call: Call, out: Tensor, scalars: Mapping[str, Tensor]) -> Tensor:
    """The output of the first map of each head, minus a share of the second's."""
    rule = call.mechanism.rule
    assert isinstance(rule, Counted), "the only rules with two maps in KINDS"
    assert rule.share is not None, "two maps"
    first, second = out.unflatten(1, (call.heads, 2)).unbind(2)  # type: ignore[no-untyped-call]
    difference: Tensor = first - dense.with_scalars(call.mechanism, scalars)(rule.share) * second
    return difference


def problem_of(x: Inputs) -> SumsProblem:
    """The inputs as the library reads them."""
    return SumsProblem(
        *(*x.q.shape[:3], x.k.shape[2], x.q.shape[3], x.v.shape[3]),
        *(x.window, x.kind, x.scale, x.eps),
        *(View.of(x.q), View.of(x.k), View.of(x.v)),
        *((None, -1) if x.segments is None else (x.segments.data_ptr(), len(x.segments))),
        x.offset,
        library.pointer(x.shift),
    )


def _forward(x: Inputs) -> tuple[Tensor, Tensor]:
    """The output and the logarithm of each denominator. Queries outside every segment get zeros."""
    empty = torch.empty if x.segments is None else torch.zeros
    out, log = empty(*x.q.shape[:3], x.v.shape[3]), empty(x.q.shape[:3])
    library.check_status(
        library.load().keysift_sums_forward(
            ctypes.byref(problem_of(x)), ctypes.byref(View.of(out)), None, library.pointer(log)
        )
    )
    return out, log


@torch.library.custom_op("keysift::sums", mutates_args=(), schema=f"({_INPUTS}) -> (Tensor, Tensor)")
def sums_operator(*inputs: Any) -> tuple[Tensor, Tensor]:
    return _forward(Inputs(*inputs))


@sums_operator.register_fake
def _(*inputs: Any) -> tuple[Tensor, Tensor]:
    x = Inputs(*inputs)
    shapes = (*x.q.shape[:3], x.v.shape[3]), x.q.shape[:3]
    out, log = (x.q.new_empty(shape, dtype=torch.float32) for shape in shapes)
    return out, log


@torch.library.custom_op(
    "keysift::sums_backward",
    mutates_args=(),
    schema=f"(Tensor dout, Tensor out, Tensor log, {_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)",
)
def backward_operator(dout: Tensor, out: Tensor, log: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    return backward_pass(Inputs(*inputs), dout, out, log)


def backward_pass(x: Inputs, dout: Tensor, out: Tensor, log: Tensor) -> tuple[Tensor, ...]:
    """Gradients of q, k, v and the shift."""
    dout = dout if dout.stride(-1) == 1 else dout.contiguous()
    dq, dk, dv, dshift = (torch.zeros(shape) for shape in (x.q.shape, x.k.shape, x.v.shape, x.q.shape[:3]))
    gradients = SumsGradients(View.of(dq), View.of(dk), View.of(dv), library.pointer(dshift))
    problem = problem_of(x)
    library.check_status(
        library.load().keysift_sums_backward(
            ctypes.byref(problem),
            ctypes.byref(View.of(out)),
            library.pointer(log),
            ctypes.byref(View.of(dout)),
            ctypes.byref(gradients),
        )
    )
    return dq, dk, dv, dshift


@backward_operator.register_fake
def _(dout: Tensor, out: Tensor, log: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    x = Inputs(*inputs)
    dshift = x.q.new_empty(x.q.shape[:3], dtype=torch.float32)
    return (*(t.new_empty(t.shape) for t in (x.q, x.k, x.v)), dshift)


def _save(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors, ctx.constants = inputs[:5], inputs[5:]  # type: ignore[attr-defined]
    ctx.save_for_backward(*output, *tensors)  # type: ignore[arg-type]


def _differentiate(ctx: torch.autograd.function.FunctionCtx, dout: Tensor, *unused: Tensor) -> tuple[Any, ...]:
    out, log, *tensors = ctx.saved_tensors  # type: ignore[attr-defined]
    x = Inputs(*tensors, *ctx.constants)  # type: ignore[attr-defined]
    dq, dk, dv, dshift = backward_operator(dout, out, log, *x)
    return (dq, dk, dv, None if x.shift is None else dshift, *[None] * (len(x) - 4))


sums_operator.register_autograd(_differentiate, setup_context=_save)
backward_operator.register_autograd(no_double_backward)

BACKEND = Backend(
    name="sums_cpu",
    about="compiled kernel for additive mechanisms: sums over blocks of keys; memory grows with queries only",
    run=run,
    unavailable=library.unavailable,
    declines=declines,
)
