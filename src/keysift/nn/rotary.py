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

    def forward(self, x_BHTK: Tensor, context: AttentionContext) -> Tensor:
        half = len(self.frequencies)
        frequency_K = torch.tensor(self.frequencies, dtype=torch.float64, device=x_BHTK.device)
        at_B1T = context.positions.query_positions(x_BHTK.device)
        angle_B1TK = (at_B1T.double() / context.inference.rope_factor)[..., None] * frequency_K
        x = x_BHTK.to(accumulation_dtype(x_BHTK))
        cos, sin = ((self.attention_factor * wave).to(x.dtype) for wave in (angle_B1TK.cos(), angle_B1TK.sin()))
        x0, x1 = x[..., :half], x[..., half:]
        return torch.cat((x0 * cos - x1 * sin, x0 * sin + x1 * cos), dim=-1).to(x_BHTK.dtype)


class NoRotation(nn.Module):
    """Identity, for models without RoPE: the mechanism may encode positions itself."""

    def forward(self, x_BHTK: Tensor, context: AttentionContext) -> Tensor:
        return x_BHTK


def rotary_embedding(position: LayerPosition, key_width: int) -> nn.Module:
    """The rotation of queries and keys of this width in a layer."""
    return NoRotation() if position.kind == "none" else RotaryEmbedding(key_width, position.theta, position.scaling)
