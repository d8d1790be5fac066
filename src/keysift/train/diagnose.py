"""Find where a non-finite number first appeared: parameter, gradient or module output."""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from keysift.data.batches import Batch
from keysift.models.losses import batch_loss
from keysift.train.distributed import DistributedModel


@torch.no_grad()
def diagnose(distributed: DistributedModel, batches: list[Batch]) -> dict[str, Any]:
    """The first non-finite parameter and module output in forward order, and gradient in backward order.

    A value is None if everything is finite. Every rank must call this, with the same number of batches.
    """
    names = list(distributed.parameters)
    values = [_non_finite(distributed.parameters[name].detach()) for name in names]
    gradients = [_non_finite(distributed.parameters[name].grad) for name in names]
    outputs = (_first(*_outputs(distributed, batch), distributed) for batch in batches)
    non_finite = [name for name in outputs if name is not None]
    return {
        "first_parameter": _first(names, values, distributed),
        "first_gradient": _first(names[::-1], gradients[::-1], distributed),
        "first_output": non_finite[0] if non_finite else None,
    }


def all_finite(distributed: DistributedModel) -> bool:
    """Whether every weight is finite. Every rank must call this."""
    (count,) = distributed.world.sum(
        sum(_non_finite(parameter.detach()) for parameter in distributed.parameters.values())
    )
    return count == 0


def _non_finite(tensor: Tensor | None) -> float:
    if tensor is None:
        return 0.0
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return float(not bool(local.isfinite().all()))


def _outputs(distributed: DistributedModel, batch: Batch) -> tuple[list[str], list[float]]:
    """Name of every module, in the order of their outputs, and whether its output is non-finite."""
    names: list[str] = []
    flags: list[float] = []

    def hook(name: str) -> Any:
        def record(module: Any, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.is_floating_point():
                names.append(name)
                flags.append(_non_finite(output))

        return record

    handles = [module.register_forward_hook(hook(name)) for name, module in distributed.module.named_modules() if name]
    try:
        batch_loss(distributed.model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return names, flags


def _first(names: list[str], flags: list[float], distributed: DistributedModel) -> str | None:
    counts = distributed.world.sum(*flags) if flags else []
    return next((name for name, count in zip(names, counts, strict=True) if count), None)
