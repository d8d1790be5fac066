"""Functions shared by mechanisms. For a row with no visible keys they return zeros and finite gradients."""

import math

import torch
from torch import Tensor


def visible_max(x: Tensor, keep: Tensor) -> Tensor:
    """Row maximum over visible keys; 0 for a row with no visible keys."""
    top = x.detach().masked_fill(~keep, -math.inf).amax(-1, keepdim=True)
    return torch.where(top == -math.inf, 0.0, top)


def softmax(x: Tensor, keep: Tensor, sink: Tensor | None = None) -> Tensor:
    """Softmax over the visible keys and the sink, if given. A row with no visible keys gets zeros."""
    x = x.masked_fill(~keep, -math.inf)
    top = x.detach().amax(-1, keepdim=True)
    if sink is not None:
        # The maximum includes the sink: otherwise exp(s - max x) would overflow for very negative rows.
        sink = sink.to(x)
        top = torch.maximum(top, sink.detach())
    m = torch.where(top == -math.inf, 0.0, top)
    return normalise(torch.exp(x - m), also=0.0 if sink is None else torch.exp(sink - m))


def normalise(p: Tensor, also: Tensor | float = 0.0) -> Tensor:
    """p / (sum p + also), and 0 where the denominator is 0."""
    total = p.sum(-1, keepdim=True) + also
    shares: Tensor = p / torch.where(total > 0, total, 1.0)
    return shares


def unit(x: Tensor, eps: float = 1e-12) -> Tensor:
    """x / max(|x|, eps). A zero vector stays zero and gets no gradient, rather than one of size 1/eps."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.where(length > eps, x / length.clamp_min(eps), x.detach() / eps)


def rms_norm(x: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps), with the mean over `dims`."""
    return x * torch.rsqrt(x.square().mean(dims, keepdim=True) + eps)
