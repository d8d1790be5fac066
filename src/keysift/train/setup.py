"""What a session stands on: the shared model, the division of a step, the precision."""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint as recomputed

from keysift.core.errors import ConfigError, UnsupportedError
from keysift.models.kinds import ModelConfig, configure
from keysift.models.language import LanguageModel
from keysift.train.config import TrainConfig
from keysift.train.distributed import Shared, World


def model_config(config: TrainConfig, vocab_size: int) -> ModelConfig:
    return configure(config.model, vocab_size=vocab_size, context=config.context)


def accumulation_steps(config: TrainConfig, world: World) -> int:
    """How often a process calls the model in one step, so that every step reads batch_tokens."""
    if config.sequences % world.size:
        raise ConfigError(
            f"{config.sequences} sequences a step cannot be shared by {world.size} processes; "
            f"make batch_tokens a multiple of {config.context * world.size}"
        )
    own = config.sequences // world.size
    at_once = max(1, config.micro_tokens // config.context)
    return next(n for n in range(1, own + 1) if own % n == 0 and own // n <= at_once)


def share_model(model: LanguageModel, config: TrainConfig, world: World) -> Shared:
    model.to(world.device)
    if config.recompute:
        for layer in model.layers:
            layer.forward = partial(recomputed, layer.forward, use_reentrant=False)
    if config.compile:
        model.compile()
    return Shared(model, config.strategy, world)


def autocast(config: TrainConfig, world: World) -> AbstractContextManager[Any]:
    """bf16 where it was asked for or is at home; nothing else."""
    cuda = world.device.type == "cuda"
    if config.precision == "bf16" and cuda and not torch.cuda.is_bf16_supported():
        raise UnsupportedError("this GPU has no bf16; use --precision fp32")
    if config.precision == "bf16" or (config.precision == "auto" and cuda and torch.cuda.is_bf16_supported()):
        return torch.autocast(world.device.type, torch.bfloat16)
    return nullcontext()
