"""Where a non-finite number began: the batch, the parameter, the part of the model."""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from keysift.data.batches import Batch
from keysift.evaluate.validation import summed_loss
from keysift.train.distributed import Shared


@torch.no_grad()
def diagnose(shared: Shared, batches: list[Batch]) -> dict[str, Any]:
    """The first parameter and module output in the order of the forward pass, and the first gradient in the order of
    the backward pass, where a non-finite number spreads towards the input; None where all is finite. Every process
    must ask, with as many batches."""
    names = list(shared.parameters)
    values = [_broken(shared.parameters[name].detach()) for name in names]
    gradients = [_broken(shared.parameters[name].grad) for name in names]
    outputs = (_first(*_outputs(shared, batch), shared) for batch in batches)
    found = [name for name in outputs if name is not None]
    return {
        "first_parameter": _first(names, values, shared),
        "first_gradient": _first(names[::-1], gradients[::-1], shared),
        "first_output": found[0] if found else None,
    }


def finite(shared: Shared) -> bool:
    """Whether every weight is a number. Every process must ask."""
    (broken,) = shared.world.sum(sum(_broken(parameter.detach()) for parameter in shared.parameters.values()))
    return broken == 0


def _broken(tensor: Tensor | None) -> float:
    if tensor is None:
        return 0.0
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return float(not bool(local.isfinite().all()))


def _outputs(shared: Shared, batch: Batch) -> tuple[list[str], list[float]]:
    """Every module's output, in the order they are made."""
    names: list[str] = []
    broken: list[float] = []

    def listen(name: str) -> Any:
        def hear(module: Any, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.is_floating_point():
                names.append(name)
                broken.append(_broken(output))

        return hear

    handles = [module.register_forward_hook(listen(name)) for name, module in shared.plain.named_modules() if name]
    try:
        summed_loss(shared.model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return names, broken


def _first(names: list[str], broken: list[float], shared: Shared) -> str | None:
    flags = shared.world.sum(*broken) if broken else []
    return next((name for name, flag in zip(names, flags, strict=True) if flag), None)
