"""The screening_gpu backend: Triton kernels for screening on CUDA and ROCm devices, forward and backward.

They are the bodies of the operators `keysift::screening` and `keysift::screening_backward` on these devices: schema,
shapes and autograd are those of `kernels/cpu/screening.py`. Non-finite rows are found by the kernels, without waiting
for the device.
"""

from typing import Any

import torch
from torch import Tensor

from keysift.kernels.backend import Backend
from keysift.kernels.call import Call
from keysift.kernels.cpu import library
from keysift.kernels.cpu import screening as operator
from keysift.kernels.cpu.screening import Inputs
from keysift.kernels.gpu import availability
from keysift.kernels.transforms import through_operator


def declines(call: Call, return_weights: bool) -> str | None:
    reason = operator.unsupported_call(call)
    return availability.declines(call, return_weights, _probe) if reason is None else reason


def run(call: Call) -> tuple[Tensor, None]:
    qkv = (call.q, call.k, call.v)
    inputs = operator.make_inputs(call.mechanism, qkv, call.scalars, call.positions, finite=call.finite)
    if through_operator(inputs):
        u: Tensor = operator.screening_operator(*inputs)[0]
        return u, None
    return forward(inputs, for_backward=False)[0], None


def forward(x: Inputs, *, for_backward: bool, processors: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """u, |h|, and in half precision h; the last two are empty unless they are needed.

    processors  how many programs should run at once; the device's number unless given
    """
    from keysift.kernels.gpu import device, screening_launch
    from keysift.kernels.gpu.arguments import Saved

    q, new = x.q, torch.empty if x.segments is None else torch.zeros
    u = new(*q.shape[:3], x.v.shape[3], dtype=q.dtype, device=q.device)
    keeps_h = for_backward and q.dtype != torch.float32
    norm = new(q.shape[:3] if for_backward else (0,), dtype=torch.float32, device=q.device)
    h = new(u.shape if keeps_h else (0,), dtype=torch.float32, device=q.device)
    saved = Saved(norm if for_backward else None, h if keeps_h else None)
    screening_launch.forward(_problem(x), u, saved, device.processors(q) if processors is None else processors)
    return u, norm, h


def backward(du: Tensor, u: Tensor, norm: Tensor, h: Tensor, x: Inputs) -> tuple[Tensor, ...]:
    """Gradients of q, k, v, window, effective_window and acceptance."""
    from keysift.kernels.gpu import screening_launch
    from keysift.kernels.gpu.arguments import Saved

    du = du if du.stride(-1) == 1 and du.dtype == u.dtype else du.to(u.dtype).contiguous()
    new = torch.empty if x.segments is None else torch.zeros
    dq, dk, dv = (new(like.shape, dtype=like.dtype, device=like.device) for like in (x.q, x.k, x.v))
    saved = Saved(norm, h if h.numel() else None)
    gradients = screening_launch.Gradients(dq, dk, dv)
    return dq, dk, dv, *screening_launch.backward(_problem(x), du, u, saved, gradients)


def _problem(x: Inputs) -> Any:
    from keysift.kernels.gpu.screening_launch import Problem

    rotates, tanh = not x.flags & library.NO_ROTATION, not x.flags & library.NO_TANH
    scalars = (x.window, x.effective_window, x.acceptance)
    return Problem(x.q, x.k, x.v, *scalars, x.w_th, x.segments, x.offset, rotates, tanh)


def _forward_operator(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    return forward(Inputs(*inputs), for_backward=True)


def _backward_operator(du: Tensor, u: Tensor, norm: Tensor, h: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    return backward(du, u, norm, h, Inputs(*inputs))


def register(device_type: str) -> None:
    """Make the Triton kernels the bodies of both operators on a type of device."""
    operator.screening_operator.register_kernel(device_type)(_forward_operator)
    operator.backward_operator.register_kernel(device_type)(_backward_operator)


def _probe(device: torch.device, dtype: torch.dtype, key_width: int, value_width: int) -> None:
    """Compile and run every kernel on a small problem, with keys split over programs and without."""
    one = torch.ones(1, device=device)
    q, v = (torch.ones(1, 1, 160, width, dtype=dtype, device=device) for width in (key_width, value_width))
    x = Inputs(q, q, v, 2 * one, 2 * one, one / 2, None, 0, 0, 256.0)
    for processors in (1_000, 0):
        u, norm, h = forward(x, for_backward=True, processors=processors)
    backward(torch.ones_like(u), u, norm, h, x)
    if device.type == "cuda":
        torch.cuda.synchronize(device)


register("cuda")

BACKEND = Backend(
    name="screening_gpu",
    about="Triton kernels for screening on CUDA and ROCm devices; never timed by us",
    run=run,
    unavailable=availability.unavailable,
    declines=declines,
    detects_non_finite=lambda call: True,
)
