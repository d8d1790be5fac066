"""The attention of a Transformer block, by any mechanism: its spec says how many heads, maps and scalars it has.

A mechanism with N key maps halves (for N = 2) the heads and doubles the value, as differential attention version 1
does: against H baseline heads of width d it has H / N heads, N key maps of width d and values of width N d. Query maps
beyond the key maps add query heads, as in version 2.

Letters: B batch, H heads, G key heads, M query maps, N key maps, T tokens, D model width, K key width, V value width.
"""

import torch
from torch import Tensor, nn

from keysift.core.errors import ConfigError
from keysift.mechanisms.spec import Mechanism, Site
from keysift.nn.cache import Reading
from keysift.nn.projection import merge, projection, split
from keysift.nn.read import Look, read
from keysift.nn.scalars import Scalars
from keysift.nn.store import Store
from keysift.nn.tap import CallTap, Tap


class Attention(nn.Module):
    """What the tokens read from each other. `site` describes the baseline heads: `Attention` folds them into maps.
    `biased` names the projections with a bias, by their letters: "", "qkv" or "qkvo"."""

    def __init__(
        self,
        mechanism: Mechanism,
        site: Site,
        *,
        width: int,
        key_heads: int,
        turn: nn.Module,
        norms: tuple[nn.Module, nn.Module],
        biased: str,
        std: float,
        out_std: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        maps, key_maps = mechanism.maps, mechanism.key_maps
        if site.heads % key_maps or key_heads % key_maps:
            raise ConfigError(
                f"{mechanism.name} folds {key_maps} heads into one, so heads and key heads must be multiples of "
                f"{key_maps}, got {site.heads} and {key_heads}"
            )
        self.mechanism = mechanism
        self.turn = turn
        self.q_norm, self.k_norm = norms
        self.query_heads = site.heads // key_maps * maps
        self.key_heads = key_heads
        self.value_heads = key_heads // key_maps
        self.q_proj = projection(width, self.query_heads * site.key_width, std, generator, bias="q" in biased)
        self.k_proj = projection(width, key_heads * site.key_width, std, generator, bias="k" in biased)
        self.v_proj = projection(width, key_heads * site.value_width, std, generator, bias="v" in biased)
        self.o_proj = projection(site.heads * site.value_width, width, out_std, generator, bias="o" in biased)
        folded = Site(
            heads=site.heads // key_maps,
            key_width=site.key_width,
            value_width=site.value_width * key_maps,
            context=site.context,
            layer=site.layer,
            depth=site.depth,
        )
        self.scalars = Scalars(mechanism, folded, width=width, key_heads=self.value_heads, std=std, generator=generator)
        self.call = CallTap()
        self.q, self.k, self.v = Tap(), Tap(), Tap()
        self.scores = Tap()
        self.relevance = Tap()
        self.output = Tap()

    def forward(self, x_BTD: Tensor, reading: Reading, store: Store | None) -> Tensor:
        q = self.turn(self.q_norm(split(self.q_proj(x_BTD), self.query_heads)), reading)
        k = self.turn(self.k_norm(split(self.k_proj(x_BTD), self.key_heads)), reading)
        v = split(self.v_proj(x_BTD), self.value_heads)
        q, k, v = self.q(q), self.k(k), self.v(v)
        scalars = self.scalars(x_BTD, reading.inference)
        look = Look(self.call, self.scores, self.relevance)
        o_BHTV = self.output(read(self.mechanism, q, k, v, scalars, reading, store, look))
        y_BTD: Tensor = self.o_proj(merge(o_BHTV))
        return y_BTD
