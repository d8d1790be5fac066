"""Mechanisms that compare cosines with a number of the row: TRA, TDA and LSSAR.

Threshold attention: squared excess of a cosine over a threshold that grows with n (arXiv:2601.12145).

    t = beta sqrt(2 log(n) / K)      n visible keys, K the key width
    a = max(0, cos(q, k) - t)^2

    tra   w = a
    tda   w = a - lam a', where a' has queries and keys of its own; the output of each head is RMS-normalised

sqrt(2 log(n) / K) is about the largest of n cosines of unrelated vectors, which have variance 1 / K.

LSSAR: length-scaled softplus attention with reweighting (arXiv:2501.13428v5).

    z = log(K) log(n) cos(q, k),   u = softplus(z)
    w = max(0, u / mean u - o)^p / sum,   o = 1, but 0 for rows of at most 3 keys

Keys below the row's mean of u get weight exactly zero.
Letters: B batch, H heads, T queries, S keys, K key width, V value width.
"""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from keysift.mechanisms import parts
from keysift.mechanisms.rules import AboveMean, Counted
from keysift.mechanisms.spec import Constant, Mechanism, Per, Promise, Scalar, Site, sigmoid

_SOURCE = "arXiv:2601.12145"
_EPS = 1e-5
_SHORT = 3  # keys of a row from which LSSAR subtracts nothing


def unit_vectors(
    q_BHTK: Tensor, k_BHSK: Tensor, v_BHSV: Tensor, at: Tensor, key_at: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return parts.unit(q_BHTK), parts.unit(k_BHSK), v_BHSV


def threshold(count_BHT1: Tensor, *, beta: Tensor, width: Tensor) -> Tensor:
    # The root of log n alone: at n = 1 the root of a product with a scalar would have an infinite slope.
    return beta * (2 * count_BHT1.log()).sqrt() / width.sqrt()


def weigh_key(x_BHTS: Tensor, distance_BHTS: Tensor, count_BHT1: Tensor, *, beta: Tensor, width: Tensor) -> Tensor:
    return (x_BHTS - threshold(count_BHT1, beta=beta, width=width)).clamp_min(0).square()


def length_factor(count_BHT1: Tensor, *, width: Tensor) -> Tensor:
    return width.log() * count_BHT1.log()


def positive(x_BHTS: Tensor) -> Tensor:
    return softplus(x_BHTS)


def sharpness(*, power: Tensor) -> Tensor:
    return power


def offset(count_BHT1: Tensor) -> Tensor:
    return (count_BHT1 > _SHORT).to(count_BHT1.dtype)


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

LSSAR = Mechanism(
    name="lssar",
    title="LSSAR",
    source="arXiv:2501.13428v5",
    page="lssar",
    formula="w = max(0, u / mean u - 1)^p / sum, u = softplus(log(K) log(n) cos(q, k))",
    rule=AboveMean(factor=length_factor, positive=positive, offset=offset, power=sharpness),
    cosine_scores=True,
    prepare=(unit_vectors,),
    scalars=(
        WIDTH,
        Scalar(
            name="power",
            meaning="the power p of the excess over the mean",
            per=Per.LAYER,
            init=Constant(15.0),
            above=1.0,
            above_allowed=True,
            learned=False,
            probes=(3.0, 15.0),
        ),
    ),
    holds=frozenset(
        {
            Promise.SUMS_TO_ONE,
            Promise.NONNEGATIVE,
            Promise.BOUNDED,
            Promise.EXACT_ZERO,
            Promise.CONVEX_HULL,
            Promise.HULL_WITH_ZERO,
            Promise.SCALE_INVARIANT,
            Promise.CAUSAL,
            Promise.BLOCKS_SKIPPABLE,
        }
    ),
    notes={
        Promise.SUMS_TO_ONE: "except where all scores of more than 3 keys are equal: every weight is 0 there",
        Promise.REFUSED_INERT: "a refused key still counts in the mean and in n",
        Promise.SINGLE_PASS: "the mean is needed before the comparison",
    },
)
