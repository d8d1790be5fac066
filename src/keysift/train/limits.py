"""Refuse by an estimate, before work starts, what no memory here could hold."""

import torch

from keysift.core import memory
from keysift.core.errors import UnsupportedError
from keysift.models.arch import Arch, MultiscreenArch
from keysift.train.config import TrainConfig
from keysift.train.costs import state_bytes
from keysift.train.distributed import World

LARGEST = 10**13  # parameters; beyond it even counting a model layer by layer takes too long


def fewest_parameters(model: Arch, vocab_size: int) -> int:
    """At least so many: the embedding and the matrices that every layer has. Arithmetic alone, for any size."""
    if isinstance(model, MultiscreenArch):
        layer = model.tiles * model.width * 2 * (model.key_width + model.value_width)
    else:
        layer = model.width * (2 * model.heads * model.per_head + 3 * model.inner)
    return model.width * vocab_size + model.depth * layer


def refuse_endless(config: TrainConfig, vocab_size: int, world: World) -> None:
    """What could not even be counted, or divided into calls."""
    tokens = config.batch_tokens / world.size
    memory.need(16 * tokens, f"a step of {config.batch_tokens:,} tokens", "lower --batch-tokens")
    least = fewest_parameters(config.model, vocab_size)
    if least > LARGEST:
        raise UnsupportedError(
            f"this model has at least {least:.1e} parameters, more than {LARGEST:.0e}; choose smaller sizes"
        )


def refuse_too_large(config: TrainConfig, vocab_size: int, world: World) -> None:
    """What one process must hold: the tokens of a step; weights, gradients and moments; the logits of one call."""
    refuse_endless(config, vocab_size, world)
    sharded = world.size if config.strategy == "fsdp2" else 1
    state = state_bytes(fewest_parameters(config.model, vocab_size), bool(config.ema)) / sharded
    tokens = config.batch_tokens / world.size
    at_once = max(config.context, min(config.micro_tokens, tokens))
    _need(state, "the weights and the state of the optimizer", "choose a smaller model, or fsdp2 on more GPUs", world)
    _need(8 * at_once * vocab_size, f"{at_once:,.0f} tokens at once", "lower --micro-tokens or --context", world)


def _need(size: float, what: str, remedy: str, world: World) -> None:
    if world.device.type != "cuda":
        memory.need(size, what, remedy)
        return
    free = torch.cuda.mem_get_info(world.device)[0]
    if size > free:
        raise UnsupportedError(
            f"{what} needs about {size / 1e9:.1f} GB, {free / 1e9:.1f} GB are free on {world.device}; {remedy}"
        )
