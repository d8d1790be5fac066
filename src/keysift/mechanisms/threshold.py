"""Threshold attention: squared excess of a cosine over a threshold that grows with n (arXiv:2601.12145).

    t = beta sqrt(2 log(n) / K)      n visible keys, K the key width
    a = max(0, cos(q, k) - t)^2

    tra   w = a
    tda   w = a - lam a', where a' has queries and keys of its own; the output of each head is RMS-normalised

sqrt(2 log(n) / K) is about the largest of n cosines of unrelated vectors, which have variance 1 / K.
Letters: B batch, H heads, T queries, S keys, K key width, V value width.
"""

import torch
from torch import Tensor

from keysift.mechanisms import parts
from keysift.mechanisms.rules import Counted
from keysift.mechanisms.spec import Constant, Mechanism, Per, Promise, Scalar, Site, sigmoid

_SOURCE = "arXiv:2601.12145"
_EPS = 1e-5


def unit_vectors(
    q_BHTK: Tensor, k_BHSK: Tensor, v_BHSV: Tensor, at: Tensor, key_at: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return parts.unit(q_BHTK), parts.unit(k_BHSK), v_BHSV


def threshold(count_BHT1: Tensor, *, beta: Tensor, width: Tensor) -> Tensor:
    # The root of log n alone: at n = 1 the root of a product with a scalar would have an infinite slope.
    return beta * (2 * count_BHT1.log()).sqrt() / width.sqrt()


def weigh_key(x_BHTS: Tensor, distance_BHTS: Tensor, count_BHT1: Tensor, *, beta: Tensor, width: Tensor) -> Tensor:
    return (x_BHTS - threshold(count_BHT1, beta=beta, width=width)).clamp_min(0).square()


def share(*, lam: Tensor) -> Tensor:
    return lam


def normalise(out_BHTV: Tensor) -> Tensor:
    return parts.rms_norm(out_BHTV, (-1,), _EPS)


def _key_width(site: Site, generator: torch.Generator | None) -> Tensor:
    return torch.tensor(site.key_width, dtype=torch.float64)


WIDTH = Scalar(
    name="width",
    meaning="the key width K; cosines of unrelated vectors have variance 1 / K",
    per=Per.LAYER,
    init=_key_width,
    above=0.0,
    learned=False,
    probes=(4.0, 64.0),
)
BETA = Scalar(
    name="beta",
    meaning="the factor of the threshold; 1 is about the largest of n cosines of unrelated vectors",
    per=Per.HEAD,
    init=Constant(1.0),
    probes=(-0.2, 0.5, 1.0),
)
LAM = Scalar(
    name="lam",
    meaning="the share of the second map that is subtracted",
    per=Per.HEAD,
    link=sigmoid,
    above=0.0,
    above_allowed=True,
    up_to=1.0,
    probes=(0.0, 0.5, 1.0),
)
_HOLDS = frozenset(
    {
        Promise.BOUNDED,
        Promise.EXACT_ZERO,
        Promise.REFUSES_EXACTLY,
        Promise.REFUSES_IN_LIMIT,
        Promise.SCALE_INVARIANT,
        Promise.CAUSAL,
        Promise.SINGLE_PASS,
        Promise.BLOCKS_SKIPPABLE,
    }
)
_NOTES = {
    Promise.ABSOLUTE: "the threshold counts keys; at a fixed n each key is weighed alone",
    Promise.REFUSED_INERT: "a refused key still counts in n",
}

TRA = Mechanism(
    name="tra",
    title="Threshold rectified attention (TRA)",
    source=_SOURCE,
    page="threshold",
    formula="w = max(0, cos(q, k) - t)^2, t = beta sqrt(2 log(n) / K)",
    rule=Counted(weigh_key=weigh_key),
    cosine_scores=True,
    prepare=(unit_vectors,),
    scalars=(BETA, WIDTH),
    holds=_HOLDS | {Promise.NONNEGATIVE},
    notes=_NOTES,
)

TDA = Mechanism(
    name="tda",
    title="Threshold differential attention (TDA)",
    source=_SOURCE,
    page="threshold",
    formula="w = a - lam a', a = max(0, cos(q, k) - t)^2; output RMS-normalised per head",
    rule=Counted(weigh_key=weigh_key, share=share),
    key_maps=2,
    cosine_scores=True,
    prepare=(unit_vectors,),
    finish=(normalise,),
    scalars=(BETA, WIDTH, LAM),
    holds=_HOLDS,
    notes=_NOTES,
)
