"""Linear projections, and the reshapes between channels and heads.

Letters: B batch, H heads, T tokens, D model width, X channels of a head.
"""

import torch
from torch import Tensor, nn


def projection(
    inputs: int, outputs: int, std: float, generator: torch.Generator | None, *, bias: bool = False
) -> nn.Linear:
    """Linear projection for all heads at once: normal weights with standard deviation `std`, bias zero."""
    # The bias is added separately: nn.Linear's own initialisation would draw from torch's global generator.
    linear = nn.Linear(inputs, outputs, bias=False)
    fill_normal(linear.weight, std, generator)
    if bias:
        linear.bias = nn.Parameter(torch.zeros(outputs))
    return linear


def fill_normal(weight: Tensor, std: float, generator: torch.Generator | None) -> None:
    """Fill a weight with normal numbers in place; a no-op on the meta device."""
    # On the meta device normal_ would do nothing, at the cost of importing a compiler.
    if not weight.is_meta:
        nn.init.normal_(weight, std=std, generator=generator)


def split(x_BTHX: Tensor, heads: int) -> Tensor:
    """Split channels into heads: B T (H X) -> B H T X."""
    b, t, channels = x_BTHX.shape
    return x_BTHX.view(b, t, heads, channels // heads).transpose(1, 2)


def merge(x_BHTX: Tensor) -> Tensor:
    """Merge heads into channels: B H T X -> B T (H X)."""
    return x_BHTX.transpose(1, 2).flatten(2)
