"""Linear projections, and the reshapes between channels and heads.

Letters: B batch, H heads, T tokens, D model width, X channels of a head.
"""

from collections.abc import Callable, Sequence
from typing import TypeGuard

import torch
from torch import Tensor, nn

from keysift.kernels.cpu.linear import linear
from keysift.nn.hooks import has_hooks

_JOIN_FROM = 32  # tokens; for fewer, joining the weights costs more than it saves


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


def join_projections(projections: Sequence[nn.Module], tokens: int) -> Callable[[Tensor], Tensor]:
    """A function that computes several projections of one input side by side: B T D -> B T (X1 + X2 + ...).

    Plain linear projections become one matrix product, which is faster than several narrow ones. The weights are joined
    here and stay separate parameters; `tokens` is the number of tokens for which they are. Wrapped or hooked modules
    (adapters, sharding) run one by one.
    """
    weights = [module.weight for module in projections if is_plain(module)]
    # A compiled graph holds for every number of tokens, so it does not depend on this one.
    many = torch.compiler.is_compiling() or tokens >= _JOIN_FROM
    if many and len(weights) == len(projections):
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)
        return lambda x_BTD: linear(x_BTD, weight)
    return lambda x_BTD: torch.cat([module(x_BTD) for module in projections], dim=-1)


def project(module: nn.Module, x_BTD: Tensor) -> Tensor:
    """The output of a linear projection: a product through oneDNN, or the module itself where something wraps it."""
    y_BTX: Tensor = linear(x_BTD, module.weight) if is_plain(module) else module(x_BTD)
    return y_BTX


def is_plain(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether the module is a linear projection without bias that nothing wraps or hooks."""
    return type(module) is nn.Linear and module.bias is None and not has_hooks(module)
