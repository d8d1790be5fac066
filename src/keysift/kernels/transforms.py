"""Torch transforms: which are active (torch.compile, torch.func, forward mode), and which the operators refuse."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from keysift.core.errors import UnsupportedError


def in_function_transform() -> bool:
    """Whether a transform of torch.func (vmap, grad, jvp) is active."""
    return not torch.compiler.is_compiling() and torch._C._functorch.maybe_current_level() is not None


def in_forward_mode() -> bool:
    """Whether tensors may carry forward-mode derivatives."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def can_inspect_values() -> bool:
    """Whether code may branch on tensor values: compiled graphs and function transforms do not allow it."""
    return not torch.compiler.is_compiling() and not in_function_transform()


def through_operator(inputs: Iterable[object]) -> bool:
    """Whether a call goes through its registered operator: autograd records a tensor of `inputs`, or a compiler runs.

    Otherwise the implementation is called directly, which saves the dispatch.
    """
    needs_grad = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs)
    return needs_grad or torch.compiler.is_compiling()


def no_double_backward(ctx: Any, *unused: Tensor) -> tuple[Tensor | None, ...]:
    """Backward of a backward operator: always raises."""
    raise UnsupportedError(
        "this backend has no second derivatives; pass backend='dense', "
        "or run the model within keysift.kernels.attend.force_backend('dense')"
    )
