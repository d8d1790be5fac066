"""Rotary position embedding (RoPE, arXiv:2104.09864v5).

The channel pair (i, i + K/2) is rotated by the angle position * theta^(-2i/K), or by a frequency scaled as in
rope_scaling.py. Partial RoPE does the same with the first channels alone, of width K; p-RoPE (arXiv:2410.06205) rotates
the pairs of highest frequency only. Positions are integers, and angles are fp64 until sine and cosine are taken: at
position 131,071 an fp32 angle is off by 0.01.
Letters: B batch, H heads, T tokens, K key width.
"""

import torch
from torch import Tensor, nn

from keysift.core.errors import ConfigError
from keysift.kernels.scalars import accumulation_dtype
from keysift.nn.cache import AttentionContext
from keysift.nn.inference import Inference
from keysift.nn.position import LayerPosition
from keysift.nn.rope_scaling import NONE, parse_scaling, rotary_frequencies


class RotaryEmbedding(nn.Module):
    """Rotates queries or keys by their positions, divided by `rope_factor`.

    share          part of the channels that are rotated, the first ones; the others pass unchanged (partial RoPE)
    proportional   keep the pairs and frequencies of the whole width, and rotate the share of highest frequency (p-RoPE)
    """

    def __init__(
        self, width: int, theta: float, scaling: str = NONE, *, share: float = 1.0, proportional: bool = False
    ) -> None:
        super().__init__()
        rotated = round(share * width)
        if width % 2 or rotated % 2 or rotated != share * width or not rotated:
            raise ConfigError(
                f"RoPE rotates pairs of channels, got {share:g} of a key width of {width}; make it an even number"
            )
        self.width, self.theta, self.scaling = width if proportional else rotated, theta, scaling
        self.pairs = rotated // 2
        self.as_trained = self._scaled(scaling)
        self._table_key = (self.width, self.pairs, theta, scaling)

    def _scaled(self, text: str) -> tuple[list[float], float]:
        scaling = parse_scaling(text)
        frequencies = rotary_frequencies(self.width, self.theta, scaling)
        still = [0.0] * (len(frequencies) - self.pairs)
        return frequencies[: self.pairs] + still, scaling.attention_factor

    def frequencies(self, inference: Inference) -> tuple[list[float], float]:
        """Radians per position of each pair of channels, and the factor of queries and keys."""
        return self.as_trained if inference.rope_scaling == NONE else self._scaled(inference.rope_scaling)

    def forward(self, x_BHTK: Tensor, context: AttentionContext) -> Tensor:
        half = self.width // 2
        x = x_BHTK.to(accumulation_dtype(x_BHTK))
        cos, sin = self._table(x, context)
        x0, x1, still = x[..., :half], x[..., half : self.width], x[..., self.width :]
        return torch.cat((x0 * cos - x1 * sin, x0 * sin + x1 * cos, still), dim=-1).to(x_BHTK.dtype)

    def _table(self, x: Tensor, context: AttentionContext) -> tuple[Tensor, Tensor]:
        """Cosines and sines B 1 T K/2 in the dtype of x. The layers of a call share them."""
        if torch.compiler.is_compiling():  # the compiler removes repeated computations itself
            return self._waves(x, context)
        key = (*self._table_key, x.dtype, x.device)
        if key not in context.rotary_tables:
            context.rotary_tables[key] = self._waves(x, context)
        return context.rotary_tables[key]

    def _waves(self, x: Tensor, context: AttentionContext) -> tuple[Tensor, Tensor]:
        frequencies, attention_factor = self.frequencies(context.inference)
        frequency_K = torch.tensor(frequencies, dtype=torch.float64, device=x.device)
        at_B1T = context.positions.query_positions(x.device)
        angle_B1TK = (at_B1T.double() / context.inference.rope_factor)[..., None] * frequency_K
        cos, sin = ((attention_factor * wave).to(x.dtype) for wave in (angle_B1TK.cos(), angle_B1TK.sin()))
        return cos, sin


class NoRotation(nn.Module):
    """Identity, for models without RoPE: the mechanism may encode positions itself."""

    def forward(self, x_BHTK: Tensor, context: AttentionContext) -> Tensor:
        return x_BHTK


def rotary_embedding(position: LayerPosition, key_width: int) -> nn.Module:
    """The rotation of queries and keys of this width in a layer."""
    if position.kind in ("none", "alibi"):
        return NoRotation()
    proportional = position.kind == "p_rope"
    return RotaryEmbedding(key_width, position.theta, position.scaling, share=position.share, proportional=proportional)
