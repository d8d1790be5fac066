"""The screening_cpu backend: the compiled kernel for screening, forward and backward.

The kernel skips keys outside the window and keys that are not accepted; both contribute exact zeros. Two operators,
`keysift::screening` and `keysift::screening_backward`, make it known to autograd and torch.compile. Without gradients
the library is called directly, which saves the dispatcher's overhead.

Letters: B batch, H tiles, G kv tiles, T queries, S keys, K key width, V value width.
"""

import ctypes
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from keysift.kernels.backend import Backend, CacheReader
from keysift.kernels.call import Call
from keysift.kernels.cpu import library, operators
from keysift.kernels.cpu.library import Gradients, Problem, View
from keysift.kernels.positions import Positions
from keysift.kernels.ring_buffers import RingBuffers
from keysift.kernels.scalars import AlignedScalars, Scalars
from keysift.kernels.schema import schema
from keysift.kernels.transforms import can_inspect_values, in_forward_mode, no_double_backward, through_operator
from keysift.mechanisms import screening
from keysift.mechanisms.spec import Mechanism

_NORM_FLAGS = {(screening.tanh_norm,): 0, (): library.NO_TANH}


def declines(call: Call, return_weights: bool) -> str | None:
    reason = unsupported_call(call)
    return operators.declines(call, return_weights) if reason is None else reason


def unsupported_call(call: Call) -> str | None:
    """Reason why the operator does not support the mechanism, the key width or a window, on any device, or None."""
    flags = mechanism_flags(call.mechanism)
    if flags is None:
        return f"it computes screening, not {call.mechanism.name}"
    if not _width_allows_rotation(flags, call.q):
        return "the rotation needs a key width of at least 2"
    return None if call.window is None else "it does not support a window"


class Inputs(NamedTuple):
    """Inputs of both operators, in the order of their schemas."""

    q: Tensor
    k: Tensor
    v: Tensor
    window: Tensor
    effective_window: Tensor
    acceptance: Tensor
    segments: Tensor | None  # N 6; None: each row is one segment with this offset
    offset: int
    flags: int
    w_th: float


_INPUTS = schema(Inputs)


def run(call: Call) -> tuple[Tensor, None]:
    inputs = make_inputs(call.mechanism, (call.q, call.k, call.v), call.scalars, call.positions, finite=call.finite)
    if through_operator(inputs):
        return screening_operator(*inputs)[0], None
    return _forward(inputs, for_backward=False)[0], None


def detects_non_finite(call: Call) -> bool:
    """The kernel reads every value in the window for its length, and checks it there."""
    return True


def supports_cache(mechanism: Mechanism, q: Tensor, scalars: Scalars) -> bool:
    """Whether `run_cached` can serve a model's call: no gradients, and scalars that are already checked."""
    flags = mechanism_flags(mechanism)
    return (
        flags is not None
        and isinstance(scalars, AlignedScalars)
        and _width_allows_rotation(flags, q)
        and operators.unsupported_tensor(q) is None
        and not torch.is_grad_enabled()
        and not in_forward_mode()
        and can_inspect_values()
    )


def run_cached(mechanism: Mechanism, q: Tensor, rings: RingBuffers, scalars: Scalars, positions: Positions) -> Tensor:
    """The output for queries over the keys of a cache, which are finite, read in place."""
    assert isinstance(scalars, AlignedScalars), "not supported"
    heads = len(rings.ring_G2)
    k, v = (x[:, None].expand(-1, heads, -1, -1) for x in (rings.k_BRK, rings.v_BRV))
    inputs = make_inputs(mechanism, (q, k, v), scalars, positions, finite=True)
    first = torch.tensor(rings.first, device="cpu")
    problem = _problem(inputs)
    problem.keys, problem.ring, problem.ring_first = rings.keys, rings.ring_G2.data_ptr(), first.data_ptr()
    u = q.new_empty(*q.shape[:3], v.shape[3])
    library.check_status(library.load().keysift_forward(ctypes.byref(problem), ctypes.byref(View.of(u)), None, None))
    return u


def make_inputs(
    mechanism: Mechanism,
    qkv: tuple[Tensor, ...],
    scalars: Mapping[str, Tensor],
    positions: Positions,
    *,
    finite: bool,
) -> "Inputs":
    flags = mechanism_flags(mechanism)
    assert flags is not None, "declined"
    if finite:
        flags |= library.FINITE_VALUES
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in qkv)
    names = ("window", "effective_window", "acceptance")
    window, effective_window, acceptance = (scalars[name].reshape(-1).contiguous() for name in names)
    w_th = window_threshold(mechanism)
    return Inputs(q, k, v, window, effective_window, acceptance, positions.segments, positions.offset, flags, w_th)


def window_threshold(mechanism: Mechanism) -> float:
    """The window from which on the mechanism does not rotate."""
    prepare = mechanism.prepare[0]
    return prepare.threshold if isinstance(prepare, screening.Prepare) else screening.WINDOW_THRESHOLD


def _width_allows_rotation(flags: int, q: Tensor) -> bool:
    """The rotation needs two channels."""
    return q.shape[3] > 1 or bool(flags & library.NO_ROTATION)


def mechanism_flags(mechanism: Mechanism) -> int | None:
    """The steps of screening that the mechanism omits, or None for another mechanism."""
    if mechanism.rule != screening.SCREENING.rule:
        return None
    if len(mechanism.prepare) != 1 or mechanism.finish not in _NORM_FLAGS:
        return None
    if isinstance(mechanism.prepare[0], screening.Prepare):
        return _NORM_FLAGS[mechanism.finish]
    if mechanism.prepare[0] is screening.prepare_without_mipe:
        return _NORM_FLAGS[mechanism.finish] | library.NO_ROTATION
    return None


def _problem(x: Inputs) -> Problem:
    return Problem(
        *(x.q.shape[0], x.q.shape[1], x.k.shape[1], x.q.shape[2], x.k.shape[2], x.q.shape[3], x.v.shape[3]),
        *(library.DTYPES[x.q.dtype], x.flags),
        *(View.of(x.q), View.of(x.k), View.of(x.v)),
        *(None, None),
        *((None, -1) if x.segments is None else (x.segments.data_ptr(), len(x.segments))),
        x.offset,
        *(x.window.data_ptr(), x.effective_window.data_ptr(), x.acceptance.data_ptr()),
        x.w_th,
    )


def _forward(x: Inputs, *, for_backward: bool) -> tuple[Tensor, Tensor, Tensor]:
    problem, q = _problem(x), x.q
    u = torch.empty(*q.shape[:3], x.v.shape[3], dtype=q.dtype)
    norm = torch.empty(q.shape[:3] if for_backward else (0,))
    # In half precision the direction of h cannot be recovered from u.
    h = torch.empty(u.shape if for_backward and q.dtype != torch.float32 else (0,))
    saved = [library.pointer(x if x.numel() else None) for x in (norm, h)]
    library.check_status(library.load().keysift_forward(ctypes.byref(problem), ctypes.byref(View.of(u)), *saved))
    return u, norm, h


@torch.library.custom_op("keysift::screening", mutates_args=(), schema=f"({_INPUTS}) -> (Tensor, Tensor, Tensor)")
def screening_operator(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """u, |h|, and in half precision h, which cannot be recovered from u there."""
    return _forward(Inputs(*inputs), for_backward=True)


@screening_operator.register_fake
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
def backward_operator(du: Tensor, u: Tensor, norm: Tensor, h: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    """Gradients of q, k, v, window, effective_window and acceptance."""
    x = Inputs(*inputs)
    problem = _problem(x)
    du = du if du.stride(-1) == 1 and du.dtype == u.dtype else du.to(u.dtype).contiguous()
    dq, dk, dv = (torch.empty(like.shape, dtype=like.dtype) for like in (x.q, x.k, x.v))
    dwindow, deffective_window, dacceptance = (torch.empty(x.q.shape[1], dtype=torch.float64) for _ in range(3))
    views = (View.of(like) for like in (dq, dk, dv))
    gradients = Gradients(*views, *(sums.data_ptr() for sums in (dwindow, deffective_window, dacceptance)))
    library.check_status(
        library.load().keysift_backward(
            ctypes.byref(problem),
            ctypes.byref(View.of(u)),
            library.pointer(norm),
            library.pointer(h if h.numel() else None),
            ctypes.byref(View.of(du)),
            ctypes.byref(gradients),
        )
    )
    return dq, dk, dv, dwindow.float(), deffective_window.float(), dacceptance.float()


@backward_operator.register_fake
def _(du: Tensor, u: Tensor, norm: Tensor, h: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    x = Inputs(*inputs)
    like = [torch.empty(of.shape, dtype=of.dtype, device=of.device) for of in (x.q, x.k, x.v)]
    return (*like, *(torch.empty_like(x.window) for _ in range(3)))


def _save(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, offset, flags, w_th = inputs
    ctx.save_for_backward(*output, *tensors)  # type: ignore[arg-type]
    ctx.constants = (offset, flags, w_th)  # type: ignore[attr-defined]


def _differentiate(ctx: torch.autograd.function.FunctionCtx, du: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
    grads = backward_operator(du, *ctx.saved_tensors, *ctx.constants)  # type: ignore[attr-defined]
    return (*grads, None, None, None, None)


screening_operator.register_autograd(_differentiate, setup_context=_save)
backward_operator.register_autograd(no_double_backward)

BACKEND = Backend(
    name="screening_cpu",
    about="compiled kernel for screening: skips keys outside the window or not accepted, exactly",
    run=run,
    unavailable=library.unavailable,
    declines=declines,
    detects_non_finite=detects_non_finite,
    cache_reader=CacheReader(supports=supports_cache, run=run_cached),
)
