"""LSSAR: length-scaled softplus attention with reweighting (arXiv:2501.13428).

    z = log(K) log(n) cos(q, k),   u = softplus(z)
    w = max(0, u / mean u - o)^p / sum,   o = 1, but 0 for rows of at most 3 keys

n is the number of visible keys, K the key width. Keys below the row's mean of u get weight exactly zero.
Letters: B batch, H heads, T queries, S keys, K key width.
"""

from torch import Tensor
from torch.nn.functional import softplus

from keysift.mechanisms.rules import AboveMean
from keysift.mechanisms.spec import Constant, Mechanism, Per, Promise, Scalar
from keysift.mechanisms.threshold import WIDTH, unit_vectors

_SHORT = 3  # rows of at most this many keys subtract nothing


def length_factor(count_BHT1: Tensor, *, width: Tensor) -> Tensor:
    return width.log() * count_BHT1.log()


def positive(x_BHTS: Tensor) -> Tensor:
    return softplus(x_BHTS)


def sharpness(*, power: Tensor) -> Tensor:
    return power


def offset(count_BHT1: Tensor) -> Tensor:
    return (count_BHT1 > _SHORT).to(count_BHT1.dtype)


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
