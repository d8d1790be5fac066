"""Multiscreen: a language model of screening tiles (Nakanishi, arXiv:2604.01178v3, sections 2 and 3).

    x_0    = exp(s_E) unit(E[token])
    x      <- x + sum over the tiles of the layer        for each layer
    logits = x (exp(s_F) unit(E))^T

No feed-forward block, no norm, no bias, no softmax but over the logits.
Letters: B batch, T tokens, D model width.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from keysift.core.config import config
from keysift.core.errors import ConfigError
from keysift.mechanisms.screening import ACCEPTANCE, SCREENING, prepare_unturned
from keysift.mechanisms.spec import Constant, Mechanism, Site, identity
from keysift.models.arch import PAPER_START, MultiscreenArch
from keysift.models.language import LanguageModel
from keysift.nn.embedding import UnitEmbedding
from keysift.nn.rotary import Rotary, Still
from keysift.nn.tile import Gate, Layer, Open, Tiles

ROPE_THETA = 10_000.0


@dataclass(frozen=True)
class Starts:
    """Initial s_r of every tile: logit(r), spaced evenly from the first tile to the last."""

    r: tuple[float, ...]

    def __call__(self, site: Site, generator: torch.Generator | None = None) -> Tensor:
        first, last = math.log(self.r[0] / (1 - self.r[0])), math.log(self.r[-1] / (1 - self.r[-1]))
        return torch.linspace(first, last, site.heads, dtype=torch.float64)


@config
class MultiscreenConfig(MultiscreenArch):
    """A Multiscreen, with its vocabulary and the length it was trained on."""

    vocab_size: int
    context: int | None = None
    """Training length, if known: what window expansion goes by. It changes nothing else."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("vocab_size", "context"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"MultiscreenConfig.{name} must be at least 1, got {value}")


def screening(config: MultiscreenConfig) -> Mechanism:
    """SCREENING itself, or SCREENING without what the config leaves out."""
    mechanism = SCREENING
    if config.position != "mipe":
        mechanism = replace(mechanism, name=f"{mechanism.name}, no mipe", prepare=(prepare_unturned,))
    if config.norm == "none":
        mechanism = replace(mechanism, name=f"{mechanism.name}, no norm", finish=())
    if config.acceptance_start != PAPER_START:
        opened = replace(ACCEPTANCE, init=Starts(config.acceptance_start))
        scalars = tuple(opened if scalar is ACCEPTANCE else scalar for scalar in mechanism.scalars)
        mechanism = replace(mechanism, scalars=scalars)
    if config.acceptance != "learned":
        fixed = replace(ACCEPTANCE, init=Constant(config.acceptance), link=identity, learned=False)
        scalars = tuple(fixed if scalar is ACCEPTANCE else scalar for scalar in mechanism.scalars)
        mechanism = replace(mechanism, name=f"{mechanism.name}, r = {config.acceptance:g}", scalars=scalars)
    return mechanism


class Multiscreen(LanguageModel):
    """tokens B T -> logits B T N. Pass a generator to make the initial weights reproducible."""

    embedding: UnitEmbedding

    def __init__(self, config: MultiscreenConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        generator = generator or torch.default_generator
        self.config = config
        self.embedding = UnitEmbedding(config.vocab_size, config.width, generator)
        self.layers = nn.ModuleList(_layer(config, layer, generator) for layer in range(config.depth))

    def readout(self, x_BTD: Tensor) -> Tensor:
        return self.embedding.readout(x_BTD)


def _layer(config: MultiscreenConfig, layer: int, generator: torch.Generator) -> Layer:
    site = Site(
        heads=config.tiles,
        key_width=config.key_width,
        value_width=config.value_width,
        layer=layer,
        depth=config.depth,
    )
    turn = Rotary(config.key_width, ROPE_THETA) if config.position == "rope" else Still()
    gate = Gate(config.width, site, generator) if config.gate else Open()
    return Layer(Tiles(screening(config), site, width=config.width, turn=turn, gate=gate, generator=generator))
