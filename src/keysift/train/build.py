"""A run's model, and what it costs: parameters, FLOPs, memory.

FLOPs are counted as the model's own work: two for each multiply-add of every matrix and, for the mechanism, of every
visible (query, key) pair; the backward pass costs twice the forward pass. Recomputation is not counted.
"""

from typing import Any, cast

import torch

from keysift.core.errors import ConfigError
from keysift.models.language import LanguageModel
from keysift.models.multiscreen import Multiscreen, MultiscreenConfig
from keysift.models.transformer import Transformer, TransformerConfig
from keysift.nn.scalars import Scalars
from keysift.train.config import TrainConfig


def model_config(config: TrainConfig, vocab_size: int) -> MultiscreenConfig | TransformerConfig:
    if config.arch == "multiscreen":
        if config.depth is None and config.heads is None and config.width is None:
            return MultiscreenConfig.psi(
                8 if config.psi is None else config.psi, vocab_size=vocab_size, context=config.context
            )
        depth, heads, width = _sizes(config)
        return MultiscreenConfig(vocab_size=vocab_size, depth=depth, tiles=heads, width=width, context=config.context)
    depth, heads, width = _sizes(config)
    return TransformerConfig(
        vocab_size=vocab_size,
        depth=depth,
        heads=heads,
        width=width,
        context=config.context,
        mechanism=config.mechanism or "softmax",
    )


def _sizes(config: TrainConfig) -> tuple[int, int, int]:
    sizes = (config.depth, config.heads, config.width)
    if config.arch == "transformer" and sizes == (None, None, None):
        return 4, 4, 128
    if None in sizes:
        raise ConfigError(
            f"depth, heads and width go together, got {config.depth}, {config.heads} and {config.width}; give all three"
        )
    return cast(tuple[int, int, int], sizes)


def build(config: MultiscreenConfig | TransformerConfig, generator: torch.Generator | None = None) -> LanguageModel:
    if isinstance(config, MultiscreenConfig):
        return Multiscreen(config, generator)
    return Transformer(config, generator)


def empty(config: Any) -> LanguageModel:
    """The model without memory: to count it, or to be given tensors."""
    with torch.device("meta"):
        return build(config)


def flops_per_token(model: LanguageModel, context: int) -> float:
    """Of a training step: forward and backward, the mechanism's own work included."""
    matrices = sum(parameter.numel() for parameter in model.parameters() if parameter.ndim == 2)
    visible = (context + 1) / 2
    pairs = 0.0
    for layer in model.layers:
        scalars = cast(Scalars, layer.scalars)
        site, mechanism = scalars.site, scalars.mechanism
        pairs += site.heads * (mechanism.maps * site.key_width + site.value_width) * visible
    return 3 * 2 * (matrices + pairs)


def state_bytes(model: LanguageModel, ema: bool) -> int:
    """Weights, gradients and the two moments of AdamW, in fp32."""
    return sum(parameter.numel() for parameter in model.parameters()) * 4 * (5 if ema else 4)
