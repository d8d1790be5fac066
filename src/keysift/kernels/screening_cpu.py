"""Screening through the compiled kernel: windows and exact zeros turned into speed, forward and backward.

Two operators, `keysift::screening` and `keysift::screening_backward`, registered with torch so that autograd and
torch.compile know them. Without gradients the library is called directly, past the dispatcher.

Letters: B batch, H tiles, G kv tiles, T queries, S keys, K key width, V value width.
"""

import ctypes
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from keysift.kernels import compiled, native
from keysift.kernels.call import Aligned, Call, Scalars, in_forward_mode, may_look
from keysift.kernels.native import Gradients, Problem, View
from keysift.kernels.positions import Positions
from keysift.kernels.rings import Rings
from keysift.mechanisms import screening
from keysift.mechanisms.spec import Mechanism

_TURNING = {(screening.prepare,): 0, (screening.prepare_unturned,): native.NO_ROTATION}
_NORMING = {(screening.tanh_norm,): 0, (): native.NO_TANH}


def declines(call: Call, return_weights: bool) -> str | None:
    flags = _flags(call.mechanism)
    if flags is None:
        return f"it computes screening, not {call.mechanism.name}"
    if not _turns(flags, call.q):
        return "the rotation needs a key width of at least 2"
    return compiled.declines(call, return_weights)


class Inputs(NamedTuple):
    """What both operators read, in the order of their schemas."""

    q: Tensor
    k: Tensor
    v: Tensor
    window: Tensor
    reach: Tensor
    acceptance: Tensor
    pieces: Tensor | None  # N 6, or each row is one piece, of this offset
    offset: int
    flags: int


_INPUTS = compiled.schema(Inputs)


def run(call: Call) -> tuple[Tensor, None]:
    inputs = _inputs(call.mechanism, (call.q, call.k, call.v), call.scalars, call.positions)
    learning = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs)
    if learning or torch.compiler.is_compiling():
        return _screening(*inputs)[0], None
    return _forward(inputs, for_backward=False)[0], None


def reads_rings(mechanism: Mechanism, q: Tensor, scalars: Scalars) -> bool:
    """Whether `run_rings` can take a model's own call: without gradients, with scalars that were checked before."""
    flags = _flags(mechanism)
    return (
        flags is not None
        and isinstance(scalars, Aligned)
        and _turns(flags, q)
        and compiled.unreadable(q) is None
        and not torch.is_grad_enabled()
        and not in_forward_mode()
        and may_look()
    )


def run_rings(mechanism: Mechanism, q: Tensor, rings: Rings, scalars: Mapping[str, Tensor], at: Positions) -> Tensor:
    """The output for queries that see keys of a cache, read where they lie."""
    heads = len(rings.ring_G2)
    k, v = (x[:, None].expand(-1, heads, -1, -1) for x in (rings.k_BRK, rings.v_BRV))
    inputs = _inputs(mechanism, (q, k, v), scalars, at)
    first = torch.tensor(rings.first, device="cpu")
    problem = _problem(inputs)
    problem.keys, problem.ring, problem.ring_first = rings.keys, rings.ring_G2.data_ptr(), first.data_ptr()
    u = q.new_empty(*q.shape[:3], v.shape[3])
    native.check(native.library().keysift_forward(ctypes.byref(problem), ctypes.byref(View.of(u)), None, None))
    return u


def _inputs(
    mechanism: Mechanism, qkv: tuple[Tensor, ...], scalars: Mapping[str, Tensor], positions: Positions
) -> "Inputs":
    flags = _flags(mechanism)
    assert flags is not None, "declined"
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in qkv)
    window, reach, acceptance = (scalars[n].reshape(-1).contiguous() for n in ("window", "reach", "acceptance"))
    return Inputs(q, k, v, window, reach, acceptance, positions.pieces, positions.offset, flags)


def _turns(flags: int, q: Tensor) -> bool:
    """Whether there are two channels to turn, or nothing turns."""
    return q.shape[3] > 1 or bool(flags & native.NO_ROTATION)


def _flags(mechanism: Mechanism) -> int | None:
    """Which pieces of screening the mechanism leaves out, or None if it is another mechanism."""
    if mechanism.rule != screening.SCREENING.rule:
        return None
    if mechanism.prepare not in _TURNING or mechanism.finish not in _NORMING:
        return None
    return _TURNING[mechanism.prepare] | _NORMING[mechanism.finish]


def _problem(x: Inputs) -> Problem:
    return Problem(
        *(x.q.shape[0], x.q.shape[1], x.k.shape[1], x.q.shape[2], x.k.shape[2], x.q.shape[3], x.v.shape[3]),
        *(native.DTYPES[x.q.dtype], x.flags),
        *(View.of(x.q), View.of(x.k), View.of(x.v)),
        *(None, None),
        *((None, -1) if x.pieces is None else (x.pieces.data_ptr(), len(x.pieces))),
        x.offset,
        *(x.window.data_ptr(), x.reach.data_ptr(), x.acceptance.data_ptr()),
        screening.WINDOW_THRESHOLD,
    )


def _forward(x: Inputs, *, for_backward: bool) -> tuple[Tensor, Tensor, Tensor]:
    problem, q = _problem(x), x.q
    u = torch.empty(*q.shape[:3], x.v.shape[3], dtype=q.dtype)
    norm = torch.empty(q.shape[:3] if for_backward else (0,))
    # In half precision u is too coarse to give the direction of h back.
    h = torch.empty(u.shape if for_backward and q.dtype != torch.float32 else (0,))
    kept = [native.pointer(x if x.numel() else None) for x in (norm, h)]
    native.check(native.library().keysift_forward(ctypes.byref(problem), ctypes.byref(View.of(u)), *kept))
    return u, norm, h


@torch.library.custom_op("keysift::screening", mutates_args=(), schema=f"({_INPUTS}) -> (Tensor, Tensor, Tensor)")
def _screening(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """u, |h|, and h where the type of u is too coarse to give it back."""
    return _forward(Inputs(*inputs), for_backward=True)


@_screening.register_fake
def _(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    q, v = Inputs(*inputs).q, Inputs(*inputs).v
    u = q.new_empty(*q.shape[:3], v.shape[3])
    norm = q.new_empty(q.shape[:3], dtype=torch.float32)
    h = q.new_empty((0,) if q.dtype == torch.float32 else u.shape, dtype=torch.float32)
    return u, norm, h


_SIX = ", ".join(["Tensor"] * 6)


@torch.library.custom_op(
    "keysift::screening_backward",
    mutates_args=(),
    schema=f"(Tensor du, Tensor u, Tensor norm, Tensor h, {_INPUTS}) -> ({_SIX})",
)
def _screening_backward(du: Tensor, u: Tensor, norm: Tensor, h: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    """Gradients of q, k, v, window, reach and acceptance."""
    x = Inputs(*inputs)
    problem = _problem(x)
    du = du if du.stride(-1) == 1 and du.dtype == u.dtype else du.to(u.dtype).contiguous()
    dq, dk, dv = (torch.empty(like.shape, dtype=like.dtype) for like in (x.q, x.k, x.v))
    dwindow, dreach, dacceptance = (torch.empty(x.q.shape[1], dtype=torch.float64) for _ in range(3))
    places = (*(View.of(like) for like in (dq, dk, dv)), *(sums.data_ptr() for sums in (dwindow, dreach, dacceptance)))
    native.check(
        native.library().keysift_backward(
            ctypes.byref(problem),
            ctypes.byref(View.of(u)),
            native.pointer(norm),
            native.pointer(h if h.numel() else None),
            ctypes.byref(View.of(du)),
            ctypes.byref(Gradients(*places)),
        )
    )
    return dq, dk, dv, dwindow.float(), dreach.float(), dacceptance.float()


@_screening_backward.register_fake
def _(du: Tensor, u: Tensor, norm: Tensor, h: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    x = Inputs(*inputs)
    like = [torch.empty(of.shape, dtype=of.dtype, device=of.device) for of in (x.q, x.k, x.v)]
    return (*like, *(torch.empty_like(x.window) for _ in range(3)))


def _keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, offset, flags = inputs
    ctx.save_for_backward(*output, *tensors)  # type: ignore[arg-type]
    ctx.rest = (offset, flags)  # type: ignore[attr-defined]


def _differentiate(ctx: torch.autograd.function.FunctionCtx, du: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
    grads = _screening_backward(du, *ctx.saved_tensors, *ctx.rest)  # type: ignore[attr-defined]
    return (*grads, None, None, None)


_screening.register_autograd(_differentiate, setup_context=_keep)


_screening_backward.register_autograd(compiled.only_once)
