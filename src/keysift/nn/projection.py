"""Linear maps, and the way between a token's channels and its heads.

Letters: B batch, H heads, T tokens, D model width, X channels of a head.
"""

import torch
from torch import Tensor, nn


def projection(
    inputs: int, outputs: int, std: float, generator: torch.Generator | None, *, bias: bool = False
) -> nn.Linear:
    """A linear map for all heads at once, its entries normal with `std`; a bias starts at zero."""
    # The bias is made apart: nn.Linear's own would draw from torch's global generator.
    linear = nn.Linear(inputs, outputs, bias=False)
    fill_normal(linear.weight, std, generator)
    if bias:
        linear.bias = nn.Parameter(torch.zeros(outputs))
    return linear


def fill_normal(weight: Tensor, std: float, generator: torch.Generator | None) -> None:
    # On the meta device, where presets are counted, this would draw nothing and import a compiler for it.
    if not weight.is_meta:
        nn.init.normal_(weight, std=std, generator=generator)


def split(x_BTHX: Tensor, heads: int) -> Tensor:
    """B T (H X) -> B H T X."""
    b, t, channels = x_BTHX.shape
    return x_BTHX.view(b, t, heads, channels // heads).transpose(1, 2)


def merge(x_BHTX: Tensor) -> Tensor:
    """B H T X -> B T (H X)."""
    return x_BHTX.transpose(1, 2).flatten(2)
