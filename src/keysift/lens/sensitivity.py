"""How much a softmax row moves when its scores do (arXiv:2508.17821, Lemma 2 and Corollary 3, corrected).

    J = (diag(alpha) - alpha alpha^T) / tau;   jacobian = its largest eigenvalue at tau = 1, at most 1/2
    g(tau, eps) = |softmax((x + eps u) / tau) - softmax(x / tau)| / eps,   u a random unit vector

tau multiplies the temperature the model uses. The published bound min(1/(4 tau), sqrt 2) does not hold for the spectral
norm; min(1/(2 tau), sqrt 2 / eps) does. Letters: H heads, Q chosen queries, S keys.
"""

import math

import torch
from torch import Tensor

from keysift.lens.rows import Numbers

TEMPERATURES = (0.05, 0.1, 0.5, 1.0, 2.0)
STEPS = (1e-3, 1e-1, 10.0)
SATURATED = 1e-2
_HALVINGS = 40


def sensitivity(scores_HQS: Tensor, seen_HQS: Tensor, normal_HQS: Tensor) -> Numbers:
    """`normal_HQS` are standard normal numbers: the direction of u before it is made a unit vector."""
    # A step of 1e-3 loses most of its digits in fp32.
    x = scores_HQS.double().masked_fill(~seen_HQS, -math.inf)
    jacobian = largest_eigenvalue(x.softmax(-1))
    several = seen_HQS.sum(-1) > 1
    found = {
        "jacobian": torch.where(several, jacobian, math.nan),
        "saturated": torch.where(several, (jacobian < SATURATED).to(x.dtype), math.nan),
    }
    u = normal_HQS.double().masked_fill(~seen_HQS, 0)
    u = u / u.norm(dim=-1, keepdim=True)
    for tau in TEMPERATURES:
        base = (x / tau).softmax(-1)
        for eps in STEPS:
            moved = ((x + eps * u) / tau).softmax(-1) - base
            g = moved.norm(dim=-1) / eps
            found[f"gradient_{tau:g}_{eps:g}"] = torch.where(several, g, math.nan)
    return found


def gradient_bound(tau: float, eps: float) -> float:
    return min(1 / (2 * tau), math.sqrt(2) / eps)


def largest_eigenvalue(alpha: Tensor) -> Tensor:
    """Of diag(alpha) - alpha alpha^T, by halving the bracket between the two largest weights.

    The eigenvalue is the root of 1 = sum alpha_i^2 / (alpha_i - lam) there; the right side rises with lam.
    """
    if alpha.shape[-1] < 2:
        return torch.zeros_like(alpha[..., 0])
    a = alpha.double()
    two = a.topk(2, dim=-1).values
    high, low = two[..., 0].clone(), two[..., 1].clone()
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        excess = (a.square() / (a - middle[..., None])).nan_to_num(posinf=0, neginf=0).sum(-1) - 1
        # Between the two largest weights every other term is negative, so the sum grows towards the largest weight.
        above = excess > 0
        high, low = torch.where(above, middle, high), torch.where(above, low, middle)
    return ((low + high) / 2).to(alpha.dtype)
