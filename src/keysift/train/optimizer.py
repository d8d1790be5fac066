"""AdamW, gradient norm and clipping, and the EMA of the weights, for sharded and unsharded parameters."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from keysift.train.config import TrainConfig


def adamw(parameters: Mapping[str, nn.Parameter], config: TrainConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only.

    Sharded and unsharded parameters are in separate groups, because torch cannot update them together. On the CPU one
    fused update serves all parameters of a group; the default is a dozen small operations for each parameter.
    """
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for parameter in parameters.values():
        groups.setdefault((parameter.ndim >= 2, isinstance(parameter, DTensor)), []).append(parameter)
    decay = config.weight_decay or 0.0
    return torch.optim.AdamW(
        [
            {"params": group, "weight_decay": decay if is_matrix else 0.0, **fused_on_cpu(group)}
            for (is_matrix, _), group in groups.items()
        ],
        lr=config.lr or 0.0,
        betas=(config.beta1, config.beta2),
    )


def fused_on_cpu(parameters: Sequence[Tensor]) -> dict[str, bool]:
    """Options of AdamW for these parameters. Shards and whole tensors take the same update, so they round alike."""
    return {"fused": True} if parameters and all(x.device.type == "cpu" for x in parameters) else {}


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def gradient_norm(parameters: Mapping[str, nn.Parameter]) -> float:
    """Norm of the full gradient: shards are summed over ranks, unsharded gradients are counted once."""
    squares: dict[bool, list[Tensor]] = {True: [], False: []}
    for parameter in parameters.values():
        gradient = parameter.grad
        if gradient is None:
            continue
        sharded = isinstance(gradient, DTensor)
        local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        squares[sharded].append(torch.linalg.vector_norm(local.float()).square())
    total = torch.stack(squares[False]).sum() if squares[False] else torch.zeros(())
    if squares[True]:
        shards = torch.stack(squares[True]).sum()
        torch.distributed.all_reduce(shards)
        total = total.to(shards.device) + shards
    return math.sqrt(float(total)) if total.isfinite() else float(total)


def clip_gradients(parameters: Mapping[str, nn.Parameter], norm: float, max_norm: float) -> None:
    """Scale gradients whose norm is above `max_norm` down to it. `max_norm` 0 disables clipping."""
    if max_norm and norm > max_norm:
        for parameter in parameters.values():
            if parameter.grad is not None:
                parameter.grad.mul_(max_norm / norm)


def init_ema(parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Initial EMA: a copy of the weights."""
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}


@torch.no_grad()
def update_ema(ema: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter], decay: float) -> None:
    for name, parameter in parameters.items():
        ema[name].lerp_(parameter.detach(), 1 - decay)
