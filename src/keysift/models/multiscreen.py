"""Multiscreen: a language model of screening tiles (Nakanishi, arXiv:2604.01178v3, sections 2 and 3).

    x_0    = exp(s_E) unit(E[token])
    x      <- x + sum over the tiles of the layer        for each layer
    logits = x (exp(s_F) unit(E))^T

There is no feed-forward block, no norm and no bias, and the only softmax is over the logits.
Letters: B batch, T tokens, D model width.
"""

import math
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from keysift.core.config import config
from keysift.core.errors import ConfigError
from keysift.kernels.cpu.decode import Ends
from keysift.mechanisms.screening import (
    ACCEPTANCE,
    SCREENING,
    WINDOW,
    WINDOW_THRESHOLD,
    Prepare,
    Windows,
    prepare_without_mipe,
)
from keysift.mechanisms.spec import Constant, Mechanism, Site, identity
from keysift.models.architecture import PAPER_ACCEPTANCE_START, MultiscreenArch
from keysift.models.language_model import LanguageModel
from keysift.nn.decode_weights import NotDescribed
from keysift.nn.embedding import TiedHead, UnitEmbedding, find_table, table_rows, unit_rows
from keysift.nn.rotary import NoRotation, RotaryEmbedding
from keysift.nn.tile import Gate, Layer, NoGate, Tiles

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
    """Config of a Multiscreen: its architecture, vocabulary size and training length."""

    vocab_size: int
    context: int | None = None
    """Training length, if known. Only window expansion uses it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("vocab_size", "context"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"MultiscreenConfig.{name} must be at least 1, got {value}")


def screening(config: MultiscreenConfig) -> Mechanism:
    """The screening mechanism, with the ablations of the config."""
    mechanism = SCREENING
    if config.window_threshold != WINDOW_THRESHOLD:
        windows = replace(WINDOW, init=Windows(config.window_threshold))
        scalars = tuple(windows if scalar is WINDOW else scalar for scalar in mechanism.scalars)
        mechanism = replace(mechanism, prepare=(Prepare(config.window_threshold),), scalars=scalars)
    if config.position != "mipe":
        mechanism = replace(mechanism, name=f"{mechanism.name}, no mipe", prepare=(prepare_without_mipe,))
    if config.norm == "none":
        mechanism = replace(mechanism, name=f"{mechanism.name}, no norm", finish=())
    if config.acceptance_start != PAPER_ACCEPTANCE_START:
        opened = replace(ACCEPTANCE, init=Starts(config.acceptance_start))
        scalars = tuple(opened if scalar is ACCEPTANCE else scalar for scalar in mechanism.scalars)
        mechanism = replace(mechanism, scalars=scalars)
    if config.acceptance != "learned":
        fixed = replace(ACCEPTANCE, init=Constant(config.acceptance), link=identity, learned=False)
        scalars = tuple(fixed if scalar is ACCEPTANCE else scalar for scalar in mechanism.scalars)
        mechanism = replace(mechanism, name=f"{mechanism.name}, r = {config.acceptance:g}", scalars=scalars)
    return mechanism


class Multiscreen(LanguageModel):
    """Language model, tokens B T -> logits B T N. Pass a generator for reproducible initial weights."""

    embedding: UnitEmbedding

    def __init__(self, config: MultiscreenConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        generator = generator or torch.default_generator
        self.config = config
        self.embedding = UnitEmbedding(config.vocab_size, config.width, generator)
        self.layers = nn.ModuleList(_layer(config, layer, generator) for layer in range(config.depth))
        self.lm_head = TiedHead(self._output_rows)

    def embed_rows(self, rows_BTD: Tensor) -> Tensor:
        return self._unit_embedding().scale_inputs(rows_BTD)

    def final_hidden(self, x_BTD: Tensor) -> Tensor:
        return self._unit_embedding().scale_outputs(x_BTD)

    def decode_ends(self, sources: list[Tensor]) -> Ends:
        if (
            type(self) is not Multiscreen
            or type(self.embedding) is not UnitEmbedding
            or type(self.lm_head) is not TiedHead
        ):
            raise NotDescribed("the embedding or the readout is wrapped or replaced")
        table = self.embedding
        sources += [table.s_E, table.s_F]
        return Ends(
            embedding=table.weight,
            head=table.weight,
            unit_rows=True,
            in_scale=math.exp(table.s_E.detach()),
            out_scale=math.exp(table.s_F.detach()),
        )

    def _output_rows(self) -> Tensor:
        return unit_rows(table_rows(self.embedding))

    def _unit_embedding(self) -> UnitEmbedding:
        """The embedding with its learned scalars, also if an adapter wraps it."""
        # A wrapper that holds a trained copy of the whole module forwards attributes to that copy.
        if hasattr(self.embedding, "scale_inputs"):
            return self.embedding
        return cast(UnitEmbedding, find_table(self.embedding, UnitEmbedding))


def _layer(config: MultiscreenConfig, layer: int, generator: torch.Generator) -> Layer:
    site = Site(
        heads=config.tiles,
        key_width=config.key_width,
        value_width=config.value_width,
        layer=layer,
        depth=config.depth,
    )
    rotary = RotaryEmbedding(config.key_width, ROPE_THETA) if config.position == "rope" else NoRotation()
    gate = Gate(config.width, site, generator) if config.gate else NoGate()
    return Layer(Tiles(screening(config), site, width=config.width, rotary=rotary, gate=gate, generator=generator))
