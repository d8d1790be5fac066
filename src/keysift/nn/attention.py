"""Attention layer of a Transformer block, for any mechanism.

The mechanism's spec determines the numbers of heads, maps and scalars. A mechanism with N key maps has H / N heads in
place of H baseline heads of width d, each with N key maps of width d and values of width N d (differential attention
version 1: N = 2). Query maps beyond the key maps add query heads (version 2).

Letters: B batch, H heads, G key heads, M query maps, N key maps, T tokens, D model width, K key width, V value width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from keysift.core.errors import ConfigError
from keysift.mechanisms.spec import Mechanism, Site
from keysift.nn.cache import AttentionContext
from keysift.nn.cached_attention import AttentionTaps, append_to_cache, attend_with_cache
from keysift.nn.layer_cache import LayerCache
from keysift.nn.position import LayerPosition
from keysift.nn.projection import merge, project, projection, split
from keysift.nn.rotary import rotary_embedding
from keysift.nn.scalars import MechanismScalars
from keysift.nn.tap import CallTap, Tap
from keysift.nn.token_shift import TokenShift


class Attention(nn.Module):
    """Multi-head attention. `site` describes the baseline heads, which `Attention` folds into maps.

    `biased` lists the projections with a bias by letter: "", "qkv" or "qkvo".
    """

    def __init__(
        self,
        mechanism: Mechanism,
        site: Site,
        *,
        width: int,
        key_heads: int,
        position: LayerPosition,
        norms: tuple[nn.Module, nn.Module],
        biased: str,
        std: float,
        out_std: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        key_maps = mechanism.key_maps
        if site.heads % key_maps or key_heads % key_maps:
            raise ConfigError(
                f"{mechanism.name} folds {key_maps} heads into one, so heads and key heads must be multiples of "
                f"{key_maps}, got {site.heads} and {key_heads}"
            )
        self.mechanism = mechanism
        self.position = position
        self.rotary = rotary_embedding(position, site.key_width)
        self.q_norm, self.k_norm = norms
        self.query_heads = query_heads(mechanism, site.heads)
        self.key_heads = key_heads
        self.value_heads = key_heads // key_maps
        self.q_proj = projection(width, self.query_heads * site.key_width, std, generator, bias="q" in biased)
        self.k_proj = projection(width, key_heads * site.key_width, std, generator, bias="k" in biased)
        self.v_proj = projection(width, key_heads * site.value_width, std, generator, bias="v" in biased)
        self.shift = (
            None
            if position.shift == "none"
            else TokenShift(position.shift, width, key_heads, self.value_heads, std, generator)
        )
        self.o_proj = projection(site.heads * site.value_width, width, out_std, generator, bias="o" in biased)
        folded = Site(
            heads=site.heads // key_maps,
            key_width=site.key_width,
            value_width=site.value_width * key_maps,
            context=site.context,
            layer=site.layer,
            depth=site.depth,
        )
        self.scalars = MechanismScalars(
            mechanism,
            folded,
            width=width,
            key_heads=self.value_heads,
            std=std,
            generator=generator,
            position=position,
        )
        self.call = CallTap()
        self.q, self.k, self.v = Tap(), Tap(), Tap()
        self.scores = Tap()
        self.relevance = Tap()
        self.output = Tap()

    def forward(self, x_BTD: Tensor, context: AttentionContext, layer_cache: LayerCache | None) -> Tensor:
        q = self.rotary(self.q_norm(split(project(self.q_proj, x_BTD), self.query_heads)), context)
        q = self.q(q)
        k, v = self._keys_and_values(x_BTD, context, layer_cache)
        scalars = self.scalars(x_BTD, context.inference)
        taps = AttentionTaps(self.call, self.scores, self.relevance)
        o_BHTV = self.output(
            attend_with_cache(self.mechanism, q, k, v, scalars, context, layer_cache, taps, self.position)
        )
        return project(self.o_proj, merge(o_BHTV))

    def append(self, x_BTD: Tensor, context: AttentionContext, layer_cache: LayerCache) -> None:
        """Append the keys and values of tokens to the cache, for tokens whose output is not needed."""
        k, v = self._keys_and_values(x_BTD, context, layer_cache)
        append_to_cache(self.mechanism, k, v, self.scalars(x_BTD, context.inference), context, layer_cache)

    def _keys_and_values(
        self, x_BTD: Tensor, context: AttentionContext, layer_cache: LayerCache | None
    ) -> tuple[Tensor, Tensor]:
        k_BTX, v_BTX = project(self.k_proj, x_BTD), project(self.v_proj, x_BTD)
        if self.shift is not None:
            k_BTX, v_BTX = self.shift(
                x_BTD, k_BTX, v_BTX, context, None if layer_cache is None else layer_cache.shifted
            )
        k_BGTK = self.rotary(self.k_norm(split(k_BTX, self.key_heads)), context)
        return self.k(k_BGTK), self.v(split(v_BTX, self.value_heads))


def query_heads(mechanism: Mechanism, heads: int) -> int:
    """Number of query heads of a layer whose baseline has this many heads."""
    return heads // mechanism.key_maps * mechanism.maps


class HeadNorm(nn.Module):
    """RMSNorm of the channels of each head, with a gain for each head and channel.

    The gains are one vector of H K numbers, which an optimizer does not take for a matrix.
    """

    def __init__(self, heads: int, width: int, eps: float) -> None:
        super().__init__()
        self.heads, self.width, self.eps = heads, width, eps
        self.weight = nn.Parameter(torch.ones(heads * width))

    def forward(self, x_BHTK: Tensor) -> Tensor:
        gain_H1K = self.weight.view(self.heads, 1, self.width)
        return F.rms_norm(x_BHTK, (self.width,), eps=self.eps) * gain_H1K
