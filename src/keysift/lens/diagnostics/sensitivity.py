"""Sensitivity of a softmax row to its scores (arXiv:2508.17821, Lemma 2 and Corollary 3, corrected).

    J = diag(alpha) - alpha alpha^T;   jacobian = its largest eigenvalue, at most 1/2
    g(T, eps) = |softmax((l + eps u) / T) - softmax(l / T)| / eps,   u a random unit vector

As in the paper, l = q.k are scores before scaling; the model's own T is 1 / scale (8 for heads of width 64). The
published bound min(1/(4 T), sqrt 2) on g does not hold; min(1/(2 T), sqrt 2 / eps) does.

The entropy floor is the smallest entropy of a row whose scores x are this far from their mean (arXiv:2303.06296,
Theorem 3.1, applied to each row):

    floor = log(1 + (n - 1) beta) + sigma sqrt(n (n - 1)) beta / (1 + (n - 1) beta)
    sigma = |x - mean x|,   beta = exp(-sigma sqrt(n / (n - 1)))

Letters: H heads, Q chosen queries, S keys.
"""

import math

import torch
from torch import Tensor

from keysift.lens.diagnostics.rows import Numbers

TEMPERATURES = (0.02, 0.05, 0.1, 0.5, 1.0, 2.0, 8.0)
STEPS = (1e-3, 1e-1, 10.0)
SATURATED = 1e-2
_HALVINGS = 32  # of a bracket shorter than 1


def sensitivity(scores_HQS: Tensor, visible_HQS: Tensor, normal_HQS: Tensor, scale: float) -> Numbers:
    """`normal_HQS` are standard normal numbers: the direction of u before normalization."""
    # In fp32 a step of 1e-3 would lose most of its digits.
    x = scores_HQS.double().masked_fill(~visible_HQS, -math.inf)
    alpha = x.softmax(-1)
    jacobian = largest_eigenvalue(alpha)
    floor, entropy = entropy_floor(x, visible_HQS), torch.special.entr(alpha).sum(-1)
    u = normal_HQS.double().masked_fill(~visible_HQS, 0)
    u = u / u.norm(dim=-1, keepdim=True)
    numbers = {
        "jacobian": jacobian,
        "saturated": (jacobian < SATURATED).to(x.dtype),
        "entropy_floor": floor,
        "entropy_floor_share": floor / entropy,
    }
    bounded, published = torch.zeros_like(jacobian), torch.zeros_like(jacobian)
    for T in TEMPERATURES:
        base = (x / (scale * T)).softmax(-1)
        for eps in STEPS:
            moved = ((x / scale + eps * u) / T).softmax(-1) - base
            g = moved.norm(dim=-1) / eps
            numbers[f"gradient_{T:g}_{eps:g}"] = g
            bounded = torch.maximum(bounded, g / gradient_bound(T, eps))
            published = torch.maximum(published, g / published_gradient_bound(T))
    numbers |= {"gradient_tightness": bounded, "gradient_above_published": (published > 1).to(x.dtype)}
    several = visible_HQS.sum(-1) > 1
    return {name: torch.where(several, value, math.nan) for name, value in numbers.items()}


def gradient_bound(T: float, eps: float) -> float:
    return min(1 / (2 * T), math.sqrt(2) / eps)


def published_gradient_bound(T: float) -> float:
    return min(1 / (4 * T), math.sqrt(2))


def entropy_floor(x_HQS: Tensor, visible_HQS: Tensor) -> Tensor:
    n = visible_HQS.sum(-1).to(x_HQS.dtype)
    x = x_HQS.masked_fill(~visible_HQS, 0)
    away = (x - (x.sum(-1) / n)[..., None]).masked_fill(~visible_HQS, 0)
    sigma = away.norm(dim=-1)
    others = (n - 1).clamp_min(1)
    beta = torch.exp(-sigma * (n / others).sqrt())
    floor: Tensor = torch.log1p(others * beta) + sigma * (n * others).sqrt() * beta / (1 + others * beta)
    return floor


def largest_eigenvalue(alpha: Tensor) -> Tensor:
    """The largest eigenvalue of diag(alpha) - alpha alpha^T, by bisection between the two largest weights.

    It is the root of 1 = sum alpha_i^2 / (alpha_i - lam) in that bracket; the right side increases with lam.
    """
    if alpha.shape[-1] < 2:
        return torch.zeros_like(alpha[..., 0])
    a = alpha.double()
    squared, two = a.square(), a.topk(2, dim=-1).values
    high, low = two[..., 0].clone(), two[..., 1].clone()
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        excess = (squared / (a - middle[..., None])).nan_to_num_(posinf=0, neginf=0).sum(-1) - 1
        # Between the two largest weights every other term is negative, so the sum grows towards the largest weight.
        above = excess > 0
        high, low = torch.where(above, middle, high), torch.where(above, low, middle)
    return ((low + high) / 2).to(alpha.dtype)
