"""Learning rate schedules: linear warm-up, then constant, cosine or wsd (constant, then linear decay)."""

import math

from keysift.train.config import TrainConfig


def lr_multiplier(config: TrainConfig, step: int) -> float:
    """Factor on `config.lr` at a step, counted from 0. The first step of a warm-up of n steps uses 1/n."""
    warmup = config.warmup or 0
    if step < warmup:
        return (step + 1) / warmup
    if config.schedule == "constant":
        return 1.0
    assert config.steps is not None
    length = config.steps - warmup
    if config.schedule == "wsd":
        length = max(1, round(config.steps * config.decay_share))
    progress = min(1.0, max(0.0, (step - (config.steps - length)) / max(1, length)))
    decay = (1 + math.cos(math.pi * progress)) / 2 if config.schedule == "cosine" else 1 - progress
    return config.final_lr + (1 - config.final_lr) * decay
