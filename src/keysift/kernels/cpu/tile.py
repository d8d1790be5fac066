"""Gated tiles in one compiled operator, forward and backward (csrc/tile.h).

From the projection of a layer, B T (q, k, v, g), to the input of its output projection, B T (H V): inputs are read
once, where they are, and the output is written once. The backward operator returns one gradient for all four parts.

Letters: B batch, H tiles, T tokens, X channels, K key width, V value width.
"""

import ctypes
from typing import Any, NamedTuple

import torch
from torch import Tensor

from keysift.kernels.cpu import library, operators, screening
from keysift.kernels.cpu.library import Gate, GateGradients, Gradients, Problem, View
from keysift.kernels.positions import Positions
from keysift.kernels.schema import schema
from keysift.kernels.tile_call import TileCall
from keysift.kernels.transforms import in_forward_mode, in_function_transform, no_double_backward, through_operator
from keysift.mechanisms.spec import Mechanism


class Inputs(NamedTuple):
    """Inputs of both operators, in the order of their schemas."""

    projected: Tensor  # B T X
    window: Tensor  # H, as the three below
    effective_window: Tensor
    acceptance: Tensor
    scale: Tensor
    segments: Tensor | None  # N 6; None: each row is one segment with this offset
    offset: int
    key_width: int
    gated: bool
    flags: int
    w_th: float

    @property
    def value_width(self) -> int:
        per_head = self.projected.shape[2] // len(self.window) - 2 * self.key_width
        return per_head // 2 if self.gated else per_head

    def parts(self, of: Tensor) -> list[Tensor]:
        """q, k, v and, if gated, g of a projection or of its gradient, as views B H T K or V."""
        b, t, _ = of.shape
        heads, value_width = len(self.window), self.value_width
        widths = [self.key_width, self.key_width, value_width] + [value_width] * self.gated
        channels = torch.split(of, [heads * width for width in widths], dim=2)
        return [x.view(b, t, heads, width).transpose(1, 2) for x, width in zip(channels, widths, strict=True)]


_INPUTS = schema(Inputs)


def declines(mechanism: Mechanism, key_width: int, like: Tensor, positions: Positions) -> str | None:
    """Reason why the operator cannot run such a call, or None. `like` has the device and dtype of the projection."""
    flags = screening.mechanism_flags(mechanism)
    if flags is None:
        return f"it computes screening, not {mechanism.name}"
    if key_width < 2 and not flags & library.NO_ROTATION:
        return "the rotation needs a key width of at least 2"
    reason = operators.unsupported_tensor(like)
    if reason is not None:
        return reason
    if in_function_transform():
        return "torch.func cannot transform a compiled operator"
    if in_forward_mode():
        return "it has no forward-mode derivative"
    if positions.queries != positions.keys and torch.is_grad_enabled():
        return "it has no gradient where earlier tokens are keys only"
    return operators.unsupported_positions(positions)


def run(call: TileCall) -> Tensor:
    """The output, B T (H V)."""
    flags = screening.mechanism_flags(call.mechanism)
    assert flags is not None, "declined"
    projected = call.projected if call.projected.stride(-1) == 1 else call.projected.contiguous()
    past = call.positions.keys - call.positions.queries
    names = ("window", "effective_window", "acceptance")
    window, effective_window, acceptance = (call.scalars[name].reshape(-1).contiguous() for name in names)
    inputs = Inputs(
        *(projected, window, effective_window, acceptance, call.scale.float().contiguous()),
        *(call.positions.segments, call.positions.offset, call.key_width, call.gated, flags),
        screening.window_threshold(call.mechanism),
    )
    if through_operator(inputs):
        assert past == 0, "declined"
        out: Tensor = _tile(*inputs)[0]
        return out
    return _forward(inputs, for_backward=False, past=past, groups=call.groups)[0]


def _problem(x: Inputs, past: int = 0) -> tuple[Problem, Gate]:
    """The first `past` tokens are keys only."""
    q, k, v, *g = x.parts(x.projected)
    q, g = q[:, :, past:], [part[:, :, past:] for part in g]
    problem = Problem(
        *(q.shape[0], q.shape[1], q.shape[1], q.shape[2], k.shape[2], x.key_width, x.value_width),
        *(library.DTYPES[q.dtype], x.flags),
        *(View.of(q), View.of(k), View.of(v)),
        *(None, None),
        *((None, -1) if x.segments is None else (x.segments.data_ptr(), len(x.segments))),
        x.offset,
        *(x.window.data_ptr(), x.effective_window.data_ptr(), x.acceptance.data_ptr()),
        x.w_th,
    )
    return problem, Gate(View.of(g[0]) if x.gated else View(), x.scale.data_ptr())


def _forward(
    x: Inputs, *, for_backward: bool, past: int = 0, groups: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    problem, gate = _problem(x, past)
    problem.groups = groups
    b, s, _ = x.projected.shape
    rows = (b, len(x.window), s - past)
    out = torch.empty(b, s - past, rows[1] * x.value_width, dtype=x.projected.dtype)
    norm = torch.empty(rows if for_backward else (0,))
    h = torch.empty((*rows, x.value_width) if for_backward else (0,))
    view = View.of(out.view(*out.shape[:2], rows[1], -1).transpose(1, 2))
    saved = [library.pointer(x if for_backward else None) for x in (norm, h)]
    library.check_status(
        library.load().keysift_tile_forward(ctypes.byref(problem), ctypes.byref(gate), ctypes.byref(view), *saved)
    )
    return out, norm, h


@torch.library.custom_op("keysift::tile", mutates_args=(), schema=f"({_INPUTS}) -> (Tensor, Tensor, Tensor)")
def _tile(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The output, |h| and h, in fp32."""
    return _forward(Inputs(*inputs), for_backward=True)


@_tile.register_fake
def _(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    x = Inputs(*inputs)
    b, t, _ = x.projected.shape
    heads, value_width = len(x.window), x.value_width
    norm = x.projected.new_empty((b, heads, t), dtype=torch.float32)
    h = x.projected.new_empty((b, heads, t, value_width), dtype=torch.float32)
    return x.projected.new_empty(b, t, heads * value_width), norm, h


_FIVE = ", ".join(["Tensor"] * 5)


@torch.library.custom_op(
    "keysift::tile_backward",
    mutates_args=(),
    schema=f"(Tensor dout, Tensor norm, Tensor h, {_INPUTS}) -> ({_FIVE})",
)
def _tile_backward(dout: Tensor, norm: Tensor, h: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    """Gradients of the projection, window, effective_window, acceptance and scale."""
    x = Inputs(*inputs)
    problem, gate = _problem(x)
    dout = dout if dout.stride(-1) == 1 and dout.dtype == x.projected.dtype else dout.to(x.projected.dtype).contiguous()
    dprojected = torch.empty(x.projected.shape, dtype=x.projected.dtype)
    dq, dk, dv, *dg = x.parts(dprojected)
    sums = [torch.empty(len(x.window), dtype=torch.float64) for _ in range(4)]
    gradients = Gradients(*(View.of(d) for d in (dq, dk, dv)), *(s.data_ptr() for s in sums[:3]))
    gate_gradients = GateGradients(View.of(dg[0]) if x.gated else View(), sums[3].data_ptr())
    view = View.of(dout.view(*dout.shape[:2], len(x.window), -1).transpose(1, 2))
    library.check_status(
        library.load().keysift_tile_backward(
            *(ctypes.byref(problem), ctypes.byref(gate), library.pointer(norm), library.pointer(h)),
            *(ctypes.byref(view), ctypes.byref(gradients), ctypes.byref(gate_gradients)),
        )
    )
    return dprojected, *(s.float() for s in sums)


@_tile_backward.register_fake
def _(dout: Tensor, norm: Tensor, h: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    x = Inputs(*inputs)
    dprojected = torch.empty(x.projected.shape, dtype=x.projected.dtype, device=x.projected.device)
    return dprojected, *(torch.empty_like(x.window) for _ in range(4))


def _save(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, offset, key_width, gated, flags, w_th = inputs
    ctx.set_materialize_grads(False)  # no gradient reaches |h| and h: nobody sees them
    ctx.save_for_backward(*output[1:], *tensors)  # type: ignore[arg-type]
    ctx.constants = (offset, key_width, gated, flags, w_th)  # type: ignore[attr-defined]


def _differentiate(
    ctx: torch.autograd.function.FunctionCtx, dout: Tensor | None, *unused: Tensor | None
) -> tuple[Tensor | None, ...]:
    if dout is None:
        return (None,) * len(Inputs._fields)
    grads = _tile_backward(dout, *ctx.saved_tensors, *ctx.constants)  # type: ignore[attr-defined]
    return (*grads, None, None, None, None, None, None)


_tile.register_autograd(_differentiate, setup_context=_save)
_tile_backward.register_autograd(no_double_backward)
