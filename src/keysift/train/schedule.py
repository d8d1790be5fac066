"""The learning rate of a step, as a share of the peak: warm-up, then constant, cosine or wsd."""

import math

from keysift.train.config import TrainConfig


def share(config: TrainConfig, step: int) -> float:
    """`step` counts from 0; the first step of a warm-up of n takes 1/n."""
    warmup = config.warmup or 0
    if step < warmup:
        return (step + 1) / warmup
    if config.schedule == "constant":
        return 1.0
    assert config.steps is not None
    length = config.steps - warmup
    if config.schedule == "wsd":
        length = max(1, round(config.steps * config.decay_share))
    done = min(1.0, max(0.0, (step - (config.steps - length)) / max(1, length)))
    down = (1 + math.cos(math.pi * done)) / 2 if config.schedule == "cosine" else 1 - done
    return config.final_lr + (1 - config.final_lr) * down
