"""Differential attention: a softmax minus lam times a second softmax.

Version 1 (Ye et al., arXiv:2410.05258v2): a head has two query maps, two key maps and values of double width.

    o = (softmax(x) - lam softmax(y)) v
    u = (1 - lam_init) RMSNorm(o)
    lam = exp(<a1, b1>) - exp(<a2, b2>) + lam_init,   lam_init(l) = 0.8 - 0.6 exp(-0.3 (l - 1)),  layers l = 1..L

Version 2 (Microsoft, technical blog of 20 January 2026): the two query maps of a head share one key and one value map.

    o = (softmax(x) - lam softmax(y)) v,   lam = sigmoid of a projection of the query's token

The maps of a head are adjacent: query heads 2h and 2h + 1, and in version 1 key heads 2g and 2g + 1.
Letters: B batch, H heads, T queries, V value width.
"""

import math

import torch
from torch import Tensor

from keysift.mechanisms import parts
from keysift.mechanisms.rules import Softmax
from keysift.mechanisms.spec import Mechanism, Per, Promise, Scalar, Site, sigmoid

_EPS = 1e-5
_HOLDS = frozenset({Promise.BOUNDED, Promise.SHIFT_INVARIANT, Promise.CAUSAL, Promise.SINGLE_PASS})


def lam_init(site: Site) -> float:
    return 0.8 - 0.6 * math.exp(-0.3 * site.layer)


def _four_vectors(site: Site, generator: torch.Generator | None) -> Tensor:
    mean = torch.zeros(4, site.key_width, dtype=torch.float64)
    return mean if generator is None else mean.normal_(0.0, 0.1, generator=generator)


def _lam(raw: Tensor, site: Site) -> Tensor:
    a1, b1, a2, b2 = raw
    lam: Tensor = (a1 @ b1).exp() - (a2 @ b2).exp() + lam_init(site)
    return lam


def _constant(site: Site, generator: torch.Generator | None) -> Tensor:
    return torch.tensor(lam_init(site), dtype=torch.float64)


def _ones(site: Site, generator: torch.Generator | None) -> Tensor:
    return torch.ones(site.value_width, dtype=torch.float64)


def share(*, lam: Tensor) -> Tensor:
    return lam


def finish(out_BHTV: Tensor, *, lam_init: Tensor, gain: Tensor) -> Tensor:
    return (1 - lam_init) * gain * parts.rms_norm(out_BHTV, (-1,), _EPS)


DIFFERENTIAL_V1 = Mechanism(
    name="differential_v1",
    title="Differential attention, version 1",
    source="arXiv:2410.05258v2",
    page="differential",
    formula="w = softmax(x) - lam softmax(y); output RMS-normalised per head",
    rule=Softmax(share=share),
    finish=(finish,),
    key_maps=2,
    scalars=(
        Scalar(
            name="lam",
            meaning="the share of the second map that is subtracted",
            per=Per.LAYER,
            init=_four_vectors,
            link=_lam,
            probes=(0.2, 0.8, 1.0),
        ),
        Scalar(
            name="lam_init",
            meaning="the layer's constant that sets the length of the output",
            per=Per.LAYER,
            init=_constant,
            learned=False,
            probes=(0.2,),
        ),
        Scalar(
            name="gain",
            meaning="the RMSNorm gain of each value channel",
            per=Per.CHANNEL,
            init=_ones,
            probes=(1.0,),
        ),
    ),
    holds=_HOLDS | {Promise.REFUSES_IN_LIMIT},
    notes={
        Promise.EXACT_ZERO: "only where softmax(x) = lam softmax(y), a set of measure zero",
        Promise.REFUSES_IN_LIMIT: "lam = 1 and both maps equal to within the eps of the RMSNorm, which rescales any "
        "larger difference to the length (1 - lam_init) sqrt(V)",
        Promise.SUMS_TO_ONE: "sums to 1 - lam before the norm",
    },
)

DIFFERENTIAL_V2 = Mechanism(
    name="differential_v2",
    title="Differential attention, version 2",
    source="Microsoft technical blog, 20 January 2026",
    page="differential",
    formula="w = softmax(x) - lam softmax(y), lam in [0, 1] per token and head",
    rule=Softmax(share=share),
    scalars=(
        Scalar(
            name="lam",
            meaning="the share of the second map that is subtracted",
            per=Per.QUERY,
            link=sigmoid,
            above=0.0,
            above_allowed=True,
            up_to=1.0,
            probes=(0.1, 0.5, 1.0),
        ),
    ),
    holds=_HOLDS | {Promise.REFUSES_IN_LIMIT},
    notes={
        Promise.REFUSES_IN_LIMIT: "when both maps agree and lam goes to 1",
        Promise.SUMS_TO_ONE: "sums to 1 - lam",
    },
)
