"""Rotary positions (RoPE, arXiv:2104.09864v5): channel pairs (i, i + K/2) turn by position * theta^(-2i/K), or by the
rates that scaling.py makes of these.

Positions are integers and angles are fp64 until their sine is taken: at position 131,071 an fp32 angle is off by 0.01.
Letters: B batch, H heads, T tokens, K key width.
"""

import torch
from torch import Tensor, nn

from keysift.core.errors import ConfigError
from keysift.kernels.call import carrier
from keysift.nn.cache import Reading
from keysift.nn.scaling import NONE, rates, read_scaling


class Rotary(nn.Module):
    """Turns the queries and keys of new tokens by their positions, divided by `rope_factor`."""

    def __init__(self, width: int, theta: float, scaling: str = NONE) -> None:
        super().__init__()
        if width % 2:
            raise ConfigError(f"RoPE turns pairs of channels, got a key width of {width}; make it even")
        found = read_scaling(scaling)
        self.rates = rates(width, theta, found)
        self.length = found.length

    def forward(self, x_BHTK: Tensor, reading: Reading) -> Tensor:
        half = len(self.rates)
        rate_K = torch.tensor(self.rates, dtype=torch.float64, device=x_BHTK.device)
        at_B1T = reading.positions.of_queries(x_BHTK.device)
        angle_B1TK = (at_B1T.double() / reading.inference.rope_factor)[..., None] * rate_K
        x = x_BHTK.to(carrier(x_BHTK))
        cos, sin = ((self.length * wave).to(x.dtype) for wave in (angle_B1TK.cos(), angle_B1TK.sin()))
        x0, x1 = x[..., :half], x[..., half:]
        return torch.cat((x0 * cos - x1 * sin, x0 * sin + x1 * cos), dim=-1).to(x_BHTK.dtype)


class Still(nn.Module):
    """No rotation: the mechanism places keys itself, or nothing does."""

    def forward(self, x_BHTK: Tensor, reading: Reading) -> Tensor:
        return x_BHTK
