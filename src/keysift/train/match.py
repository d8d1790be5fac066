"""A size for a model so that it has about as many parameters as another: for fair comparisons."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from keysift.core.errors import ConfigError
from keysift.models.arch import Arch, MultiscreenArch, arch_name
from keysift.models.kinds import configure, empty
from keysift.models.language import count
from keysift.models.presets import PRESETS
from keysift.models.save import load
from keysift.runs.directory import Run
from keysift.runs.layout import holds_a_run
from keysift.train.config import TrainConfig
from keysift.train.distributed import World
from keysift.train.facts import read_facts
from keysift.train.source import open_source


def matched(config: TrainConfig, other: str) -> tuple[TrainConfig, str]:
    """The same run with the width at which its model comes nearest to `other`, a run, a saved model or a preset, and a
    sentence that says how near. Depth, heads and all else stay; a preset is counted with this run's vocabulary."""
    vocab_size = open_source(config, World(0, 1, torch.device("cpu")), show=True).tokenizer.vocab_size

    def parameters(model: Arch) -> int:
        return count(empty(configure(model, vocab_size=vocab_size, context=config.context)))

    if holds_a_run(Path(other)):
        wanted = read_facts(Run(Path(other))).parameters
    elif other in PRESETS:
        wanted = parameters(PRESETS.find(other).arch)
    elif Path(other).exists():
        wanted = count(load(other))
    else:
        raise ConfigError(f"--match takes a run, a saved model or a preset, and {other} is none; see keysift presets")
    model = config.model
    # Heads divide the width of a Transformer, and RoPE turns pairs of a head's channels.
    step = 1 if isinstance(model, MultiscreenArch) else 2 * model.heads
    width = _nearest(lambda n: parameters(replace(model, width=n * step)), wanted) * step
    found = replace(model, width=width)
    made = parameters(found)
    said = f"matched to {other}: {arch_name(found)} of width {width} has {made:,} parameters, {other} has {wanted:,}"
    return replace(config, model=found), f"{said} ({made / wanted - 1:+.2%})"


def _nearest(size: Any, wanted: int) -> int:
    """The n at which a rising function comes nearest to `wanted`."""
    high = 1
    while size(high) < wanted:
        high *= 2
    low = 1
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if size(middle) < wanted else (low, middle)
    return min((n for n in (low - 1, low) if n), key=lambda n: abs(size(n) - wanted))
