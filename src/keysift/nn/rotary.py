"""Rotary position embedding (RoPE, arXiv:2104.09864v5).

The channel pair (i, i + K/2) is rotated by the angle position * theta^(-2i/K), or by a frequency scaled as in
rope_scaling.py. Positions are integers, and angles are fp64 until sine and cosine are taken: at position 131,071 an
fp32 angle is off by 0.01.
Letters: B batch, H heads, T tokens, K key width.
"""

import torch
from torch import Tensor, nn

from keysift.core.errors import ConfigError
from keysift.kernels.scalars import accumulation_dtype
from keysift.nn.cache import AttentionContext
from keysift.nn.position import LayerPosition
from keysift.nn.rope_scaling import NONE, parse_scaling, rotary_frequencies


class RotaryEmbedding(nn.Module):
    """Rotates queries or keys by their positions, divided by `rope_factor`."""

    def __init__(self, width: int, theta: float, scaling: str = NONE) -> None:
        super().__init__()
        if width % 2:
            raise ConfigError(f"RoPE rotates pairs of channels, got a key width of {width}; make it even")
        parsed = parse_scaling(scaling)
        self.frequencies = rotary_frequencies(width, theta, parsed)
        self.attention_factor = parsed.attention_factor
        self._table_key = (tuple(self.frequencies), self.attention_factor)

    def forward(self, x_BHTK: Tensor, context: AttentionContext) -> Tensor:
        half = len(self.frequencies)
        x = x_BHTK.to(accumulation_dtype(x_BHTK))
        cos, sin = self._table(x, context)
        x0, x1 = x[..., :half], x[..., half:]
        return torch.cat((x0 * cos - x1 * sin, x0 * sin + x1 * cos), dim=-1).to(x_BHTK.dtype)

    def _table(self, x: Tensor, context: AttentionContext) -> tuple[Tensor, Tensor]:
        """Cosines and sines B 1 T K/2 in the dtype of x. The layers of a call share them."""
        if torch.compiler.is_compiling():  # the compiler removes repeated computations itself
            return self._waves(x, context)
        key = (*self._table_key, x.dtype, x.device)
        if key not in context.rotary_tables:
            context.rotary_tables[key] = self._waves(x, context)
        return context.rotary_tables[key]

    def _waves(self, x: Tensor, context: AttentionContext) -> tuple[Tensor, Tensor]:
        frequency_K = torch.tensor(self.frequencies, dtype=torch.float64, device=x.device)
        at_B1T = context.positions.query_positions(x.device)
        angle_B1TK = (at_B1T.double() / context.inference.rope_factor)[..., None] * frequency_K
        cos, sin = ((self.attention_factor * wave).to(x.dtype) for wave in (angle_B1TK.cos(), angle_B1TK.sin()))
        return cos, sin


class NoRotation(nn.Module):
    """Identity, for models without RoPE: the mechanism may encode positions itself."""

    def forward(self, x_BHTK: Tensor, context: AttentionContext) -> Tensor:
        return x_BHTK


def rotary_embedding(position: LayerPosition, key_width: int) -> nn.Module:
    """The rotation of queries and keys of this width in a layer."""
    return NoRotation() if position.kind == "none" else RotaryEmbedding(key_width, position.theta, position.scaling)
