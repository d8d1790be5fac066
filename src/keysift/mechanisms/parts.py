"""Pieces several mechanisms are made of. Each is defined for empty rows, with zero and finite gradients there."""

import math

import torch
from torch import Tensor


def visible_max(x: Tensor, keep: Tensor) -> Tensor:
    """Row maximum over visible keys; 0 for a row that sees nothing."""
    top = x.detach().masked_fill(~keep, -math.inf).amax(-1, keepdim=True)
    return torch.where(top.isfinite(), top, 0.0)


def softmax(x: Tensor, keep: Tensor) -> Tensor:
    """Softmax over visible keys. A row that sees nothing gets zeros, not NaN and not the mean."""
    p = torch.exp(x.masked_fill(~keep, -math.inf) - visible_max(x, keep))
    return share(p)


def share(p: Tensor, also: Tensor | float = 0.0) -> Tensor:
    """p / (sum p + also), and 0 where the whole is 0."""
    total = p.sum(-1, keepdim=True) + also
    shares: Tensor = p / torch.where(total > 0, total, 1.0)
    return shares


def unit(x: Tensor, eps: float = 1e-12) -> Tensor:
    """x / max(|x|, eps). A zero vector stays zero and, without a direction, gets no gradient: not one of 1/eps."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.where(length > eps, x / length.clamp_min(eps), x.detach() / eps)


def tanh_norm(h: Tensor) -> Tensor:
    """tanh(|h|)/|h| * h, and h itself where |h| is small."""
    square = h.square().sum(-1, keepdim=True)
    small = square < 1e-8
    length = torch.where(small, 1.0, square).sqrt()
    # tanh(n)/n = 1 - n^2/3 + O(n^4): at n = 1e-4 the next term is below double precision.
    return h * torch.where(small, 1 - square / 3, torch.tanh(length) / length)


def rms_norm(x: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(dims, keepdim=True) + eps)


def turn(x: Tensor, turns: Tensor) -> Tensor:
    """Rotate coordinates (0, 1) of x by `turns` full turns; the other coordinates stay.

    `turns` comes in fp64 and is reduced to one turn before it becomes an angle: at position 131,071 an fp32 angle
    would be wrong by whole degrees.
    """
    angle = (2 * math.pi * (turns - turns.detach().floor())).to(x.dtype)
    cos, sin = angle.cos(), angle.sin()
    x0, x1 = x[..., 0], x[..., 1]
    turned = torch.stack((x0 * cos - x1 * sin, x0 * sin + x1 * cos), dim=-1)
    return torch.cat((turned, x[..., 2:]), dim=-1)


def fade(distance: Tensor, window: Tensor) -> Tensor:
    """(1 + cos(pi d / w)) / 2 for 0 <= d < w, else 0; 1 at every d >= 0 when w is infinite.

    Whether a key is inside is decided on the integer distance.
    """
    inside = (distance >= 0) & (distance < window)
    # The quotient is taken only inside, so no gradient comes from d / w far outside.
    ratio = torch.where(inside, distance, 0) / window
    return torch.where(inside, (torch.cos(math.pi * ratio) + 1) / 2, 0.0)


def mipe_rate(window: Tensor, threshold: float) -> Tensor:
    """Turns per position of the minimal positional encoding: gamma(w) / (2 w), and none from `threshold` on."""
    below = window < threshold
    w = torch.where(below, window, threshold)
    gamma = (torch.cos(math.pi * w / threshold) + 1) / 2
    return torch.where(below, gamma / (2 * w), 0.0)
