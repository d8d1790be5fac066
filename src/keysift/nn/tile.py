"""Multiscreen layer: all tiles of a layer, computed together (arXiv:2604.01178v3, equations 2 and 15 to 18).

    q, k, v, g = x W_Q, x W_K, x W_V, x W_G
    u  = screening(q, k, v)                          equations 4 to 14
    dx = sum over tiles of (u * tanh(SiLU(g))) (exp(s_O) W_O)

One projection covers all tiles: tile h has channels h K to (h + 1) K. Initial values are those of table 4.
Letters: B batch, H tiles, T tokens, D model width, K key width, V value width.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keysift.mechanisms.spec import Mechanism, Site
from keysift.nn.cache import AttentionContext
from keysift.nn.cached_attention import AttentionTaps, append_to_cache, attend_with_cache
from keysift.nn.fused_tiles import FusedTiles
from keysift.nn.hooks import has_hooks
from keysift.nn.layer_cache import LayerCache
from keysift.nn.projection import merge, projection, split
from keysift.nn.rotary import NoRotation
from keysift.nn.scalars import MechanismScalars
from keysift.nn.tap import CallTap, Tap


class Gate(nn.Module):
    """Output gate tanh(SiLU(x W_G)), B H T V, with values in (-0.28, 1)."""

    def __init__(self, width: int, site: Site, generator: torch.Generator) -> None:
        super().__init__()
        self.heads = site.heads
        self.gate_proj = projection(width, site.heads * site.value_width, 0.1, generator)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return torch.tanh(F.silu(split(self.gate_proj(x_BTD), self.heads)))


class NoGate(nn.Module):
    """Gate of constant one."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.new_ones(())


class Tiles(nn.Module):
    """Sum of the outputs dx of a layer's tiles."""

    def __init__(
        self,
        mechanism: Mechanism,
        site: Site,
        *,
        width: int,
        rotary: nn.Module,
        gate: nn.Module,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.mechanism = mechanism
        self.site = site
        self.heads = site.heads
        self.rotary = rotary
        self.gating = gate
        key_std, value_std = 0.1 / math.sqrt(site.key_width), 0.1 / math.sqrt(site.value_width)
        self.q_proj = projection(width, site.heads * site.key_width, key_std, generator)
        self.k_proj = projection(width, site.heads * site.key_width, key_std, generator)
        self.v_proj = projection(width, site.heads * site.value_width, value_std, generator)
        self.o_proj = projection(site.heads * site.value_width, width, 0.1 / math.sqrt(width), generator)
        self.s_O = nn.Parameter(torch.full((site.heads,), -0.5 * math.log(site.heads * site.depth)))
        self.scalars = MechanismScalars(
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

    def forward(self, x_BTD: Tensor, context: AttentionContext, layer_cache: LayerCache | None) -> Tensor:
        fused = self._fused()
        if fused is not None:
            dx_BTD = fused.run(x_BTD, context, layer_cache)
            if dx_BTD is not None:
                return dx_BTD
        q, k, v = (split(project(x_BTD), self.heads) for project in (self.q_proj, self.k_proj, self.v_proj))
        q, k = self.rotary(q, context), self.rotary(k, context)
        q, k, v = self.q(q), self.k(k), self.v(v)
        scalars = self.scalars(x_BTD, context.inference)
        taps = AttentionTaps(self.call, self.scores, self.relevance)
        u_BHTV = self.screened(attend_with_cache(self.mechanism, q, k, v, scalars, context, layer_cache, taps))
        gated = u_BHTV * self.gate(self.gating(x_BTD)) * self.s_O.exp()[:, None, None]
        return self.o_proj(merge(gated))  # type: ignore[no-any-return]

    def append(self, x_BTD: Tensor, context: AttentionContext, layer_cache: LayerCache) -> None:
        """Append the keys and values of tokens to the cache, for tokens whose output is not needed."""
        k, v = (split(project(x_BTD), self.heads) for project in (self.k_proj, self.v_proj))
        k = self.k(self.rotary(k, context))
        append_to_cache(self.mechanism, k, self.v(v), self.scalars(x_BTD, context.inference), context, layer_cache)

    def _fused(self) -> FusedTiles | None:
        """The layer as one operator and two matrix products, or None where a step between them must run."""
        taps = (self.call, self.q, self.k, self.v, self.scores, self.relevance, self.screened, self.gate)
        if any(tap.has_listeners or has_hooks(tap) for tap in taps):
            return None
        gate = self.gating
        if type(self.rotary) is not NoRotation or type(gate) not in (Gate, NoGate):
            return None
        if has_hooks(self.rotary) or has_hooks(gate):
            return None
        return FusedTiles(
            mechanism=self.mechanism,
            site=self.site,
            inputs=(self.q_proj, self.k_proj, self.v_proj, *([gate.gate_proj] if isinstance(gate, Gate) else [])),
            output=self.o_proj,
            scalars=self.scalars,
            s_O=self.s_O,
        )


class Layer(nn.Module):
    """x + dx, without a norm or a feed-forward block."""

    def __init__(self, tiles: Tiles) -> None:
        super().__init__()
        self.tiles = tiles
        self.stream_in, self.tiles_out, self.stream = Tap(), Tap(), Tap()

    @property
    def scalars(self) -> MechanismScalars:
        return self.tiles.scalars

    def forward(self, x_BTD: Tensor, context: AttentionContext, layer_cache: LayerCache | None) -> Tensor:
        x_BTD = self.stream_in(x_BTD)
        y_BTD: Tensor = self.stream(x_BTD + self.tiles_out(self.tiles(x_BTD, context, layer_cache)))
        return y_BTD

    def append(self, x_BTD: Tensor, context: AttentionContext, layer_cache: LayerCache) -> None:
        self.tiles.append(x_BTD, context, layer_cache)
