"""The sums_gpu backend: Triton kernels for additive mechanisms on CUDA and ROCm devices, forward and backward.

They are the bodies of the operators `keysift::sums` and `keysift::sums_backward` on these devices; the mechanisms are
those of `kernels/cpu/sums.py`. Query heads share the keys and values of their group without a copy.
"""

from typing import Any

import torch
from torch import Tensor

from keysift.kernels.backend import Backend
from keysift.kernels.call import Call
from keysift.kernels.cpu import sums as operator
from keysift.kernels.cpu.sums import KINDS, Inputs
from keysift.kernels.eager import dense
from keysift.kernels.gpu import availability
from keysift.mechanisms.relu_exp import SOFTPICK


def declines(call: Call, return_weights: bool) -> str | None:
    if call.mechanism.rule not in KINDS:
        return f"it does not implement {call.mechanism.name}"
    return availability.declines(call, return_weights, _probe)


def run(call: Call) -> tuple[Tensor, None]:
    mechanism = call.mechanism
    # Steps before the scores are plain torch, on fp32 copies. Without them the inputs are read as they are.
    as_they_are = not mechanism.prepare and mechanism.maps == 1 and mechanism.rest_value is None
    prepared = (call.q, call.k, call.v, call.scalars) if as_they_are else dense.prepare(call)
    return operator.run_with(call, prepared, lambda inputs: _forward_operator(*inputs)[0]), None


def _forward_operator(*inputs: Any) -> tuple[Tensor, Tensor]:
    from keysift.kernels.gpu import sums_launch

    return sums_launch.forward(Inputs(*inputs))


def _backward_operator(dout: Tensor, out: Tensor, log: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    from keysift.kernels.gpu import sums_launch

    return sums_launch.backward(dout, out, log, Inputs(*inputs))


def register(device_type: str) -> None:
    """Make the Triton kernels the bodies of both operators on a type of device."""
    operator.sums_operator.register_kernel(device_type)(_forward_operator)
    operator.backward_operator.register_kernel(device_type)(_backward_operator)


def _probe(device: torch.device, dtype: torch.dtype, key_width: int, value_width: int) -> None:
    """Compile and run every kernel of one kind on a small problem."""
    q, v = (torch.ones(1, 1, 2, width, dtype=dtype, device=device) for width in (key_width, value_width))
    x = Inputs(q, q, v, None, None, 0, 0, KINDS[SOFTPICK.rule].code, 1.0, 1e-8)
    out, log = _forward_operator(*x)
    _backward_operator(out, out, log, *x)
    if device.type == "cuda":
        torch.cuda.synchronize(device)


register("cuda")

BACKEND = Backend(
    name="sums_gpu",
    about="Triton kernels for additive mechanisms on CUDA and ROCm devices; never timed by us",
    run=run,
    unavailable=availability.unavailable,
    declines=declines,
)
