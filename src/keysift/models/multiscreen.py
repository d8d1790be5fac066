"""Multiscreen: a language model of screening tiles (Nakanishi, arXiv:2604.01178v3, sections 2 and 3).

    x_0    = exp(s_E) unit(E[token])
    x      <- x + sum over the tiles of the layer        for each layer
    logits = x (exp(s_F) unit(E))^T

No feed-forward block, no norm, no bias, no softmax but over the logits.
Letters: B batch, T tokens, D model width.
"""

from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor, nn

from keysift.core.config import config
from keysift.core.errors import ConfigError
from keysift.mechanisms.screening import ACCEPTANCE, SCREENING, prepare_unturned
from keysift.mechanisms.spec import Constant, Mechanism, Site, identity
from keysift.models.language import LanguageModel
from keysift.nn.embedding import UnitEmbedding
from keysift.nn.rotary import Rotary, Still
from keysift.nn.tile import Gate, Layer, Open, Tiles

ROPE_THETA = 10_000.0
PAPER_START = (0.5,)


@dataclass(frozen=True)
class Starts:
    """Initial s_r of every tile: logit(r), spaced evenly from the first tile to the last."""

    r: tuple[float, ...]

    def __call__(self, site: Site, generator: torch.Generator | None = None) -> Tensor:
        ends = torch.tensor(self.r, dtype=torch.float64).logit()
        return torch.linspace(float(ends[0]), float(ends[-1]), site.heads, dtype=torch.float64)


@config
class MultiscreenConfig:
    """Sizes of a Multiscreen and its ablations; the defaults are the paper's."""

    vocab_size: int
    depth: int
    """Layers."""
    tiles: int
    """Tiles of each layer."""
    width: int
    """Channels of the residual stream."""
    key_width: int = 16
    value_width: int = 64
    position: Literal["mipe", "rope", "none"] = "mipe"
    """How queries and keys are turned by their positions."""
    norm: Literal["tanh", "none"] = "tanh"
    """What bounds the length of a tile's output."""
    gate: bool = True
    """Whether tanh(SiLU(x W_G)) multiplies a tile's output."""
    acceptance: Literal["learned"] | float = "learned"
    """The acceptance width r of every tile: learned, or one number in (0, 1]."""
    acceptance_start: tuple[float, ...] = PAPER_START
    """Where a learned r starts: one number for every tile, or two for the first tile and the last, the others between.
    The paper starts at 0.5; near 1 every key is seen at first, which is our own change."""
    context: int | None = None
    """Training length, if known: what window expansion goes by. It changes nothing else."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "depth", "tiles", "width", "key_width", "value_width"):
            if getattr(self, name) < 1:
                raise ConfigError(f"MultiscreenConfig.{name} must be at least 1, got {getattr(self, name)}")
        if self.position == "mipe" and self.key_width < 2:
            raise ConfigError(f"MiPE turns the first two of a key's channels, got key_width={self.key_width}")
        if self.acceptance != "learned" and not 0 < self.acceptance <= 1:
            raise ConfigError(f"a fixed acceptance is a number in (0, 1], got {self.acceptance}")
        if len(self.acceptance_start) not in (1, 2) or not all(0 < r < 1 for r in self.acceptance_start):
            raise ConfigError(f"acceptance_start is one or two numbers in (0, 1), got {self.acceptance_start}")
        if self.acceptance != "learned" and self.acceptance_start != PAPER_START:
            raise ConfigError("a fixed acceptance has no start; leave acceptance_start out")
        if self.context is not None and self.context < 1:
            raise ConfigError(f"MultiscreenConfig.context must be at least 1, got {self.context}")

    @classmethod
    def psi(cls, psi: int, *, vocab_size: int, context: int | None = None) -> Self:
        """The paper's one-dial family: layers = tiles = psi, width = psi^2."""
        return cls(vocab_size=vocab_size, depth=psi, tiles=psi, width=psi**2, context=context)


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
