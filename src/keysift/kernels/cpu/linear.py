"""x W^T in fp32 through oneDNN. torch multiplies fp32 matrices with MKL, which copies narrow ones first.

MKL uses AVX-512 on Intel's processors only. So on AMD's the gradient of the weight and products into given memory go
through oneDNN too: by hand on an AMD EPYC, half the time for 64 inputs and 1,280 outputs. Elsewhere they stay with MKL.

Letters: N tokens, D inputs, X outputs.
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from keysift.core import provenance
from keysift.kernels.transforms import can_inspect_values, in_forward_mode

_MIN_TOKENS = 512  # tokens; oneDNN compiles a kernel for every new shape, about a millisecond


def linear(x_BTD: Tensor, weight_XD: Tensor) -> Tensor:
    """x W^T, differentiable, as F.linear."""
    if not _suits(x_BTD, weight_XD):
        return F.linear(x_BTD, weight_XD)
    y_BTX: Tensor = _Linear.apply(x_BTD, weight_XD)  # type: ignore[no-untyped-call]
    return y_BTX


def linear_into(x_ND: Tensor, weight_XD: Tensor, out_NX: Tensor) -> None:
    """Write x W^T to `out_NX`. It has no gradient."""
    if _onednn_is_fastest() and _suits(x_ND, weight_XD):
        out_NX.copy_(_product(x_ND, weight_XD))  # oneDNN's linear product cannot write to given memory
    else:
        torch.mm(x_ND, weight_XD.t(), out=out_NX)


def _suits(x: Tensor, weight: Tensor) -> bool:
    return (
        can_inspect_values()
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and x.numel() >= _MIN_TOKENS * x.shape[-1] > 0
        and type(x) is Tensor
        and isinstance(weight, Tensor)
        and not in_forward_mode()
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._len_torch_dispatch_stack()
        and bool(torch.backends.mkldnn.enabled)
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # private to torch: inductor calls it
    )


def _product(x: Tensor, weight: Tensor) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return y


def _weight_gradient(dy_NX: Tensor, x_ND: Tensor) -> Tensor:
    """dy^T x, of shape X D."""
    if not _onednn_is_fastest():
        return dy_NX.t() @ x_ND
    # oneDNN is fastest with the larger of X and D as its number of outputs.
    if dy_NX.shape[1] > x_ND.shape[1]:
        return _product(x_ND.t(), dy_NX.t()).t().contiguous()
    return _product(dy_NX.t(), x_ND.t())


@cache
def _onednn_is_fastest() -> bool:
    """Whether it is for every product, rather than for x W^T alone."""
    return provenance.cpu_vendor() == "AuthenticAMD"


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        dx = dweight = None
        if ctx.needs_input_grad[0]:
            # A second derivative needs operators that autograd knows.
            dx = dy @ weight if torch.is_grad_enabled() else _product(dy, weight.t())
        if ctx.needs_input_grad[1]:
            dy_NX, x_ND = dy.flatten(0, -2), x.flatten(0, -2)
            dweight = dy_NX.t() @ x_ND if torch.is_grad_enabled() else _weight_gradient(dy_NX, x_ND)
        return dx, dweight
