"""AdamW over a model's parameters, sharded or not, the norm of the gradient, and an average of the weights."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from keysift.train.config import TrainConfig


def adamw(parameters: Mapping[str, nn.Parameter], config: TrainConfig) -> torch.optim.AdamW:
    """Only matrices decay. Sharded and whole tensors are kept in groups of their own: torch cannot mix them in one."""
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for parameter in parameters.values():
        groups.setdefault((parameter.ndim >= 2, isinstance(parameter, DTensor)), []).append(parameter)
    decay = config.weight_decay or 0.0
    return torch.optim.AdamW(
        [{"params": members, "weight_decay": decay if matrix else 0.0} for (matrix, _), members in groups.items()],
        lr=config.lr or 0.0,
        betas=(config.beta1, config.beta2),
    )


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def gradient_norm(parameters: Mapping[str, nn.Parameter]) -> float:
    """Of the whole gradient: shards are summed over their processes, whole tensors counted once."""
    squares: dict[bool, list[Tensor]] = {True: [], False: []}
    for parameter in parameters.values():
        gradient = parameter.grad
        if gradient is None:
            continue
        sharded = isinstance(gradient, DTensor)
        local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        squares[sharded].append(torch.linalg.vector_norm(local.float()).square())
    whole = torch.stack(squares[False]).sum() if squares[False] else torch.zeros(())
    if squares[True]:
        shards = torch.stack(squares[True]).sum()
        torch.distributed.all_reduce(shards)
        whole = whole.to(shards.device) + shards
    return math.sqrt(float(whole)) if whole.isfinite() else float(whole)


def clip(parameters: Mapping[str, nn.Parameter], norm: float, largest: float) -> None:
    if largest and norm > largest:
        for parameter in parameters.values():
            if parameter.grad is not None:
                parameter.grad.mul_(largest / norm)


def averages(parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}


@torch.no_grad()
def average(kept: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter], decay: float) -> None:
    for name, parameter in parameters.items():
        kept[name].lerp_(parameter.detach(), 1 - decay)
