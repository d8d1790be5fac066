"""The tiles of one Multiscreen layer, all at once (arXiv:2604.01178v3, equations 2 and 15 to 18).

    q, k, v, g = x W_Q, x W_K, x W_V, x W_G
    u  = screening(q, k, v)                          equations 4 to 14
    dx = sum over tiles of (u * tanh(SiLU(g))) (exp(s_O) W_O)

One projection serves every tile: tile h owns channels h K to (h + 1) K. Table 4 gives the initial values.
Letters: B batch, H tiles, T tokens, D model width, K key width, V value width.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keysift.mechanisms.spec import Mechanism, Site
from keysift.nn.cache import Reading
from keysift.nn.projection import merge, projection, split
from keysift.nn.read import Look, read
from keysift.nn.scalars import Scalars
from keysift.nn.store import Store
from keysift.nn.tap import CallTap, Tap


class Gate(nn.Module):
    """tanh(SiLU(x W_G)), in (-0.28, 1): B H T V."""

    def __init__(self, width: int, site: Site, generator: torch.Generator) -> None:
        super().__init__()
        self.heads = site.heads
        self.gate_proj = projection(width, site.heads * site.value_width, 0.1, generator)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return torch.tanh(F.silu(split(self.gate_proj(x_BTD), self.heads)))


class Open(nn.Module):
    """No gate: everything passes."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.new_ones(())


class Tiles(nn.Module):
    """dx for every tile of a layer, summed."""

    def __init__(
        self,
        mechanism: Mechanism,
        site: Site,
        *,
        width: int,
        turn: nn.Module,
        gate: nn.Module,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.mechanism = mechanism
        self.heads = site.heads
        self.turn = turn
        self.gating = gate
        key_std, value_std = 0.1 / math.sqrt(site.key_width), 0.1 / math.sqrt(site.value_width)
        self.q_proj = projection(width, site.heads * site.key_width, key_std, generator)
        self.k_proj = projection(width, site.heads * site.key_width, key_std, generator)
        self.v_proj = projection(width, site.heads * site.value_width, value_std, generator)
        self.o_proj = projection(site.heads * site.value_width, width, 0.1 / math.sqrt(width), generator)
        self.s_O = nn.Parameter(torch.full((site.heads,), -0.5 * math.log(site.heads * site.depth)))
        self.scalars = Scalars(
            mechanism,
            site,
            width=width,
            key_heads=site.heads,
            std=0.1,
            generator=generator,
            symbols={"window": "s_w", "acceptance": "s_r"},
        )
        self.call = CallTap()
        self.q, self.k, self.v = Tap(), Tap(), Tap()
        self.scores = Tap()
        self.relevance = Tap()
        self.screened = Tap()
        self.gate = Tap()

    def forward(self, x_BTD: Tensor, reading: Reading, store: Store | None) -> Tensor:
        q, k, v = (split(project(x_BTD), self.heads) for project in (self.q_proj, self.k_proj, self.v_proj))
        q, k = self.turn(q, reading), self.turn(k, reading)
        q, k, v = self.q(q), self.k(k), self.v(v)
        scalars = self.scalars(x_BTD, reading.inference)
        look = Look(self.call, self.scores, self.relevance)
        u_BHTV = self.screened(read(self.mechanism, q, k, v, scalars, reading, store, look))
        gated = u_BHTV * self.gate(self.gating(x_BTD)) * self.s_O.exp()[:, None, None]
        dx_BTD: Tensor = self.o_proj(merge(gated))
        return dx_BTD


class Layer(nn.Module):
    """x + dx: no norm, no feed-forward block."""

    def __init__(self, tiles: Tiles) -> None:
        super().__init__()
        self.tiles = tiles
        self.stream = Tap()

    @property
    def scalars(self) -> Scalars:
        return self.tiles.scalars

    def forward(self, x_BTD: Tensor, reading: Reading, store: Store | None) -> Tensor:
        y_BTD: Tensor = self.stream(x_BTD + self.tiles(x_BTD, reading, store))
        return y_BTD
