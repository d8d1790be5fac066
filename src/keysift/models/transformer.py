"""The LLaMA-style baseline, with any mechanism in place of softmax (arXiv:2604.01178v3, table 3).

    x_0    = E[token]
    x      <- x + attention(norm(x));  x <- x + SwiGLU(norm(x))        for each layer
    logits = norm(x) E^T

Two RMSNorm gains a layer and none at the end, RoPE, tied embeddings, no bias.
Letters: B batch, T tokens, D model width.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from keysift.core.config import config
from keysift.core.errors import ConfigError
from keysift.mechanisms import find
from keysift.mechanisms.spec import Site
from keysift.models.language import LanguageModel
from keysift.nn.attention import Attention
from keysift.nn.block import NORM_EPS, Block, SwiGLU
from keysift.nn.projection import fill_normal
from keysift.nn.rotary import Rotary, Still


@config
class TransformerConfig:
    """Sizes of a Transformer and the mechanism that reads."""

    vocab_size: int
    depth: int
    """Layers."""
    heads: int
    """Heads of a softmax layer; mechanisms with several key maps fold them (see nn/attention.py)."""
    width: int
    """Channels of the residual stream; a head has width / heads of them."""
    key_heads: int | None = None
    """Heads of keys and values, shared by groups of query heads; as many as heads if left out."""
    context: int = 4096
    """Training length: the n of mechanisms that count keys, and the start value of those that learn it."""
    mechanism: str | tuple[str, ...] = "softmax"
    """A registered mechanism, name+wrapper, or one for each layer."""
    position: Literal["rope", "none"] = "rope"
    rope_theta: float = 10_000.0
    qk_norm: bool = False
    """RMSNorm with gain on queries and keys."""
    init: Literal["version3", "version1"] = "version3"
    """Standard deviations: sqrt(2/(5D)) and 2/(L sqrt D) for residual outputs, or 0.02 and 0.02/sqrt(2L)."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "depth", "heads", "width", "context"):
            if getattr(self, name) < 1:
                raise ConfigError(f"TransformerConfig.{name} must be at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise ConfigError(f"width must be a multiple of heads, got {self.width} and {self.heads}")
        if self.key_heads is not None and (self.key_heads < 1 or self.heads % self.key_heads):
            raise ConfigError(f"key_heads must divide heads, got {self.key_heads} and {self.heads}")
        if len(self.mechanisms) != self.depth:
            raise ConfigError(
                f"mechanism names {len(self.mechanisms)} layers and depth is {self.depth}; "
                f"give one name, or one per layer"
            )
        for mechanism in self.mechanisms:
            find(mechanism)

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """One name for each layer."""
        return (self.mechanism,) * self.depth if isinstance(self.mechanism, str) else self.mechanism

    @property
    def stds(self) -> tuple[float, float]:
        """Of every matrix, and of those that write to the residual stream."""
        if self.init == "version1":
            return 0.02, 0.02 / math.sqrt(2 * self.depth)
        return math.sqrt(2 / (5 * self.width)), 2 / (self.depth * math.sqrt(self.width))


class Transformer(LanguageModel):
    """tokens B T -> logits B T N. Pass a generator to make the initial weights reproducible."""

    def __init__(self, config: TransformerConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        generator = generator or torch.default_generator
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        fill_normal(self.embedding.weight, config.stds[0], generator)
        self.layers = nn.ModuleList(_block(config, layer, generator) for layer in range(config.depth))
        self.norm = nn.RMSNorm(config.width, eps=NORM_EPS, elementwise_affine=False)

    def readout(self, x_BTD: Tensor) -> Tensor:
        logits_BTN: Tensor = self.norm(x_BTD) @ self.embedding.weight.mT
        return logits_BTN


def _block(config: TransformerConfig, layer: int, generator: torch.Generator) -> Block:
    head = config.width // config.heads
    std, out_std = config.stds
    site = Site(
        heads=config.heads,
        key_width=head,
        value_width=head,
        context=config.context,
        layer=layer,
        depth=config.depth,
    )
    norms = tuple(nn.RMSNorm(head, eps=NORM_EPS) if config.qk_norm else nn.Identity() for _ in range(2))
    attention = Attention(
        find(config.mechanisms[layer]),
        site,
        width=config.width,
        key_heads=config.key_heads or config.heads,
        turn=Rotary(head, config.rope_theta) if config.position == "rope" else Still(),
        norms=(norms[0], norms[1]),
        std=std,
        out_std=out_std,
        generator=generator,
    )
    return Block(attention, SwiGLU(config.width, std, out_std, generator), config.width)
