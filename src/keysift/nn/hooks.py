"""Hooks and replaced forward methods: what a call of a module runs besides the forward method of its class.

A fused or compiled path that does not call a module must not skip these.
"""

import operator
from collections.abc import Mapping
from itertools import repeat
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module

Hooks = Mapping[int, Any]

# torch adds to these dictionaries and removes from them, so a reference to one stays current.
GLOBAL_FORWARD_HOOKS: tuple[Hooks, ...] = (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks)
GLOBAL_BACKWARD_HOOKS: tuple[Hooks, ...] = (
    torch_module._global_backward_hooks,
    torch_module._global_backward_pre_hooks,
)


def forward_hooks(module: nn.Module) -> tuple[Hooks, ...]:
    """The dictionaries of the hooks that a call without gradients runs, apart from the global ones."""
    return module._forward_hooks, module._forward_pre_hooks


def replaces_forward(*attributes: Mapping[str, Any]) -> bool:
    """Whether the attributes of one of these modules (its __dict__) hold a forward method of its own."""
    # accelerate sets one that loads offloaded weights
    return any(map(operator.contains, attributes, repeat("forward")))


def has_hooks(module: nn.Module) -> bool:
    """Whether a call of the module runs hooks, global ones included, or a replaced forward method."""
    hooks = (*forward_hooks(module), module._backward_hooks, module._backward_pre_hooks)
    return any(hooks + GLOBAL_FORWARD_HOOKS + GLOBAL_BACKWARD_HOOKS) or replaces_forward(module.__dict__)
