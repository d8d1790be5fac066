"""Transformer: the LLaMA-style baseline, with softmax or any other mechanism (arXiv:2604.01178v3, table 3).

    x_0    = E[token]
    x      <- x + attention(norm(x));  x <- x + SwiGLU(norm(x))        for each layer
    logits = norm(x) E^T

The defaults are the paper's baseline: two RMSNorm gains per layer and none at the end, RoPE, tied embeddings, no bias.
With other settings of TransformerArch it is a Llama, Mistral or Qwen model (llama_config.py reads their configs).
Letters: B batch, T tokens, D model width.
"""

import math

import torch
from torch import Tensor, nn

from keysift.core.config import config
from keysift.core.errors import ConfigError
from keysift.kernels.cpu.decode import Ends
from keysift.mechanisms import find
from keysift.mechanisms.spec import Site
from keysift.models.architecture import TransformerArch
from keysift.models.language_model import LanguageModel
from keysift.nn.attention import Attention, HeadNorm, query_heads
from keysift.nn.block import Block, SwiGLU
from keysift.nn.decode_weights import NotDescribed, linear, norm
from keysift.nn.embedding import TiedHead, table_rows
from keysift.nn.projection import fill_normal, projection


@config
class TransformerConfig(TransformerArch):
    """Config of a Transformer: its architecture, vocabulary size and training length."""

    vocab_size: int
    context: int = 4096
    """Training length. Mechanisms that depend on the number of keys use it as a constant or as an initial value."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("vocab_size", "context"):
            if getattr(self, name) < 1:
                raise ConfigError(f"TransformerConfig.{name} must be at least 1, got {getattr(self, name)}")
        # Not `mechanisms`, whose length is the depth: a malicious file may claim any depth.
        for mechanism in (self.mechanism,) if isinstance(self.mechanism, str) else self.mechanism:
            find(mechanism)
        patterns = 1 if isinstance(self.mechanism, str) else self.depth
        for layer in range(max(patterns, 1 if isinstance(self.position, str) else len(self.position))):
            name = self.mechanism if isinstance(self.mechanism, str) else self.mechanism[layer]
            if self.layer_position(layer).kind == "alibi" and not find(name).takes_bias:
                raise ConfigError(
                    f"{name} scores are cosines in [-1, 1], so alibi has no meaning for it; choose another position"
                )

    @property
    def stds(self) -> tuple[float, float]:
        """Initial standard deviations: of all matrices, and of those that write to the residual stream."""
        if self.initial_std == "version1":
            return 0.02, 0.02 / math.sqrt(2 * self.depth)
        return math.sqrt(2 / (5 * self.width)), 2 / (self.depth * math.sqrt(self.width))


class Transformer(LanguageModel):
    """Language model, tokens B T -> logits B T N. Pass a generator for reproducible initial weights."""

    def __init__(self, config: TransformerConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        generator = generator or torch.default_generator
        self.config = config
        # nn.Embedding skips its own random initialisation when it is given a table.
        table = torch.empty(config.vocab_size, config.width)
        self.embedding = nn.Embedding(config.vocab_size, config.width, _weight=table)
        fill_normal(self.embedding.weight, config.stds[0], generator)
        self.layers = nn.ModuleList(_block(config, layer, generator) for layer in range(config.depth))
        self.norm = nn.RMSNorm(config.width, eps=config.norm_eps, elementwise_affine=config.final_gain)
        self.lm_head = (
            TiedHead(self._output_rows)
            if config.tied_embeddings
            else projection(config.width, config.vocab_size, config.stds[0], generator)
        )

    def final_hidden(self, x_BTD: Tensor) -> Tensor:
        normalised_BTD: Tensor = self.norm(x_BTD)
        return normalised_BTD

    def decode_ends(self, sources: list[Tensor]) -> Ends:
        if type(self) is not Transformer or type(self.embedding) is not nn.Embedding:
            raise NotDescribed("the embedding is wrapped or replaced")
        table = self.embedding.weight
        if type(self.lm_head) is TiedHead:
            return Ends(embedding=table, head=table, norm=norm(self.norm))
        readout = linear(self.lm_head)
        if readout.bias is not None:
            raise NotDescribed("the readout has a bias")
        return Ends(embedding=table, head=readout.weight, norm=norm(self.norm))

    def _output_rows(self) -> Tensor:
        return table_rows(self.embedding)


def _block(config: TransformerConfig, layer: int, generator: torch.Generator) -> Block:
    head, eps = config.resolved_head_width, config.norm_eps
    std, out_std = config.stds
    site = Site(
        heads=config.heads,
        key_width=head,
        value_width=head,
        context=config.context,
        layer=layer,
        depth=config.depth,
    )
    mechanism, key_heads = find(config.mechanisms[layer]), config.key_heads or config.heads

    def norm(heads: int) -> nn.Module:
        if not config.qk_norm:
            return nn.Identity()
        return nn.RMSNorm(head, eps=eps) if config.qk_gains == "shared" else HeadNorm(heads, head, eps)

    attention = Attention(
        mechanism,
        site,
        width=config.width,
        key_heads=key_heads,
        position=config.layer_position(layer),
        norms=(norm(query_heads(mechanism, config.heads)), norm(key_heads)),
        biased=config.attention_bias.removeprefix("none"),
        std=std,
        out_std=out_std,
        generator=generator,
    )
    return Block(
        attention, SwiGLU(config.width, config.resolved_hidden_width, std, out_std, generator), config.width, eps
    )
