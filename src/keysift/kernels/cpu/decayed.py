"""The decayed_cpu backend: softmax whose scores fall with newer keys, by forget gates or by ALiBi's slopes.

    p_ij = softmax_j(x_ij + C_i - C_j)     C falls from key to key: the sum of log f so far, minus slope times position
    w = gain (p - share p' - level)        p' of a second map, which runs as heads of the same call

C grows with the text, so it is in fp64, and so is C_i - C_j of each pair. The kernel takes weights below exp(-70) =
4e-31 for zero. Keys that are certainly so light are not read: the newest key of a query has no decay, and the lengths
of the query and of the longest key bound how far a score can exceed that of the newest. Two operators,
`keysift::decayed` and `keysift::decayed_backward`, make the kernel known to autograd and torch.compile; dC_j is minus
the sum of the gradients of a column of scores.

Letters: B batch, H heads, T queries, S keys, K key width, V value width.
"""

import ctypes
from typing import Any, NamedTuple

import torch
from torch import Tensor

from keysift.kernels.backend import Backend
from keysift.kernels.call import Call
from keysift.kernels.cpu import library, operators
from keysift.kernels.cpu.library import SumsGradients, SumsProblem, View
from keysift.kernels.cpu.sums import DECAYED
from keysift.kernels.eager import dense
from keysift.kernels.eager.sdpa import weighted_difference
from keysift.kernels.regions import own_keys
from keysift.kernels.schema import schema
from keysift.kernels.transforms import no_double_backward, through_operator
from keysift.mechanisms.rules import Softmax

MIN_QUERIES = 16  # a batch has 32; below this, torch's kernel is faster
VANISHED = (
    70.0  # the kernel's weights below exp(-70) are zero: the next ones would make subnormal numbers, which are slow
)


def declines(call: Call, return_weights: bool) -> str | None:
    rule = call.mechanism.rule
    if not isinstance(rule, Softmax) or rule.factor is not None or rule.sink is not None:
        return f"it does not implement {call.mechanism.name}"
    if rule.forget is None and call.slopes is None:
        return "there are no forget gates and no slopes"
    return operators.declines(call, return_weights, takes_slopes=True)


class Inputs(NamedTuple):
    """Inputs of both operators, in the order of their schemas."""

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor  # B H S fp64: C
    segments: Tensor | None  # N 6; None: each row is one segment with this offset
    offset: int
    window: int  # 0: none
    scale: float


_INPUTS = schema(Inputs)


def run(call: Call) -> tuple[Tensor, None]:
    q, k, v, scalars = dense.prepare(call)
    rule = call.mechanism.rule
    assert isinstance(rule, Softmax), "declined"
    apply = dense.with_scalars(call.mechanism, scalars)
    decay = torch.zeros((), dtype=torch.float64)
    if rule.forget is not None:
        decay = apply(rule.forget)[..., 0].double().cumsum(-1)
    if call.slopes is not None:
        decay = decay - call.slopes.double()[:, None] * torch.arange(k.shape[2])
    decay = dense.repeat_heads(decay.expand(q.shape[0], call.heads, k.shape[2]), rule.maps).contiguous()
    values = dense.repeat_heads(v, rule.maps)  # maps run as heads of one call
    q, k, values = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, values))
    inputs = Inputs(q, k, values, decay, *operators.mask_arguments(call), call.scale)
    out: Tensor = (_decayed(*inputs) if through_operator(inputs) else _forward(inputs))[0]
    return dense.finish(call, weighted_difference(call, out, v, apply), scalars).to(call.v.dtype), None


def _reach(x: Inputs) -> tuple[Tensor, Tensor]:
    """For each query the score of the newest key in view, and the first key of the row that can have a weight."""
    own_BT, _ = own_keys(x.segments, x.offset, x.q, x.k.shape[2])
    newest_BHTK = x.k if _is_identity(x) else x.k.take_along_dim(own_BT[..., None], dim=2)
    newest_BHT = x.scale * torch.einsum("bhtk,bhtk->bht", x.q, newest_BHTK)
    falls = bool((x.decay[..., 1:] <= x.decay[..., :-1]).all())
    first_BHT = torch.zeros(x.q.shape[:3], dtype=torch.int64)
    if falls and bool((x.decay[..., 0] - x.decay[..., -1] > VANISHED).any()):
        longest_BH1 = x.k.norm(dim=-1).amax(-1, keepdim=True)
        above_BHT = (
            abs(x.scale) * x.q.norm(dim=-1) * longest_BH1 - newest_BHT
        )  # of any score over that of the newest key
        limit_BHT = x.decay.take_along_dim(own_BT, dim=2) + VANISHED + above_BHT.double()
        first_BHT = torch.searchsorted(-x.decay, -limit_BHT)
    return newest_BHT.contiguous(), first_BHT


def _is_identity(x: Inputs) -> bool:
    return x.segments is None and x.offset == 0 and x.q.shape[2] == x.k.shape[2]


def _problem(x: Inputs, newest: Tensor, first_key: Tensor) -> SumsProblem:
    return SumsProblem(
        *(*x.q.shape[:3], x.k.shape[2], x.q.shape[3], x.v.shape[3]),
        *(x.window, DECAYED, x.scale, 0.0),
        *(View.of(x.q), View.of(x.k), View.of(x.v)),
        *((None, -1) if x.segments is None else (x.segments.data_ptr(), len(x.segments))),
        x.offset,
        *(library.pointer(t) for t in (newest, x.decay, first_key)),
    )


def _forward(x: Inputs) -> tuple[Tensor, ...]:
    """The output, the logarithm of each denominator, and `_reach`. Queries outside every segment get zeros."""
    empty = torch.empty if x.segments is None else torch.zeros
    out, log = empty(*x.q.shape[:3], x.v.shape[3]), empty(x.q.shape[:3])
    newest, first_key = _reach(x)
    problem = _problem(x, newest, first_key)
    library.check_status(
        library.load().keysift_sums_forward(
            ctypes.byref(problem), ctypes.byref(View.of(out)), None, library.pointer(log)
        )
    )
    return out, log, newest, first_key


@torch.library.custom_op("keysift::decayed", mutates_args=(), schema=f"({_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)")
def _decayed(*inputs: Any) -> tuple[Tensor, ...]:
    return _forward(Inputs(*inputs))


@_decayed.register_fake
def _(*inputs: Any) -> tuple[Tensor, ...]:
    x = Inputs(*inputs)
    log, newest, first_key = (
        x.q.new_empty(x.q.shape[:3], dtype=d) for d in (torch.float32, torch.float32, torch.int64)
    )
    return x.q.new_empty(*x.q.shape[:3], x.v.shape[3]), log, newest, first_key


@torch.library.custom_op(
    "keysift::decayed_backward",
    mutates_args=(),
    schema=f"(Tensor dout, Tensor out, Tensor log, Tensor newest, Tensor first_key, {_INPUTS}) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
)
def _decayed_backward(
    dout: Tensor, out: Tensor, log: Tensor, newest: Tensor, first_key: Tensor, *inputs: Any
) -> tuple[Tensor, ...]:
    """Gradients of q, k, v and the decay."""
    x = Inputs(*inputs)
    dout = dout if dout.stride(-1) == 1 else dout.contiguous()
    dq, dk, dv = (torch.zeros(t.shape) for t in (x.q, x.k, x.v))
    row_sums, column_sums = torch.zeros(x.q.shape[:3]), torch.zeros(x.k.shape[:3])
    gradients = SumsGradients(*map(View.of, (dq, dk, dv)), *map(library.pointer, (row_sums, column_sums)))
    problem = _problem(x, newest, first_key)
    library.check_status(
        library.load().keysift_sums_backward(
            ctypes.byref(problem),
            ctypes.byref(View.of(out)),
            library.pointer(log),
            ctypes.byref(View.of(dout)),
            ctypes.byref(gradients),
        )
    )
    # The gradients of a row's scores sum to zero but for rounding, which C_i must not turn into a gradient.
    ddecay = -column_sums.double()
    own, seen = own_keys(x.segments, x.offset, x.q, x.k.shape[2])
    row_sums = torch.where(seen, row_sums.double(), 0.0)
    ddecay.scatter_add_(2, own.expand(row_sums.shape), row_sums)
    return dq, dk, dv, ddecay


@_decayed_backward.register_fake
def _(dout: Tensor, out: Tensor, log: Tensor, newest: Tensor, first_key: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    return tuple(t.new_empty(t.shape) for t in Inputs(*inputs)[:4])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors, ctx.constants = inputs[:5], inputs[5:]
    ctx.save_for_backward(*output, *tensors)
    ctx.mark_non_differentiable(*output[1:])


def _differentiate(ctx: Any, dout: Tensor, *unused: Tensor) -> tuple[Any, ...]:
    gradients = _decayed_backward(dout, *ctx.saved_tensors, *ctx.constants)
    return *gradients, None, None, None, None


_decayed.register_autograd(_differentiate, setup_context=_save)
_decayed_backward.register_autograd(no_double_backward)

BACKEND = Backend(
    name="decayed_cpu",
    about="compiled kernel for softmax with forget gates or ALiBi; memory grows with queries only",
    run=run,
    unavailable=library.unavailable,
    declines=declines,
    min_queries=MIN_QUERIES,
)
