"""Softmax minus a constant: a control for differential attention, with a constant in place of the second map.

    softmax_minus_constant   w = gain (softmax(x) - c)         e.g. gain 2, c 1/2
    softmax_minus_uniform    w = softmax(x) - lam / n          differential attention whose second map is uniform

n is the number of visible keys. Letters: B batch, H heads, T queries.
"""

from torch import Tensor

from keysift.mechanisms.rules import Softmax
from keysift.mechanisms.spec import Constant, Mechanism, Per, Promise, Scalar

_SOURCE = "public discussion of arXiv:2410.05258v2"
_HOLDS = frozenset({Promise.BOUNDED, Promise.SHIFT_INVARIANT, Promise.CAUSAL, Promise.SINGLE_PASS})


def constant(count_BHT1: Tensor, *, c: Tensor) -> Tensor:
    return c


def uniform(count_BHT1: Tensor, *, lam: Tensor) -> Tensor:
    return lam / count_BHT1


def weight_gain(*, gain: Tensor) -> Tensor:
    return gain


SOFTMAX_MINUS_CONSTANT = Mechanism(
    name="softmax_minus_constant",
    title="Softmax minus a constant",
    source=_SOURCE,
    page="minus_constant",
    formula="w = gain (softmax(x) - c)",
    rule=Softmax(level=constant, gain=weight_gain),
    scalars=(
        Scalar(
            name="gain",
            meaning="the factor of the weights",
            per=Per.HEAD,
            init=Constant(2.0),
            learned=False,
            probes=(1.0, 2.0),
        ),
        Scalar(
            name="c",
            meaning="the constant subtracted from every weight",
            per=Per.HEAD,
            init=Constant(0.5),
            learned=False,
            probes=(0.5, 1.0),
        ),
    ),
    holds=_HOLDS,
    notes={Promise.SUMS_TO_ONE: "sums to gain (1 - c n)"},
)

SOFTMAX_MINUS_UNIFORM = Mechanism(
    name="softmax_minus_uniform",
    title="Softmax minus the uniform map",
    source=_SOURCE,
    page="minus_constant",
    formula="w = softmax(x) - lam / n",
    rule=Softmax(level=uniform),
    scalars=(
        Scalar(
            name="lam",
            meaning="the share of the uniform map that is subtracted",
            per=Per.HEAD,
            init=Constant(0.5),
            probes=(0.0, 0.5, 1.0),
        ),
    ),
    holds=_HOLDS | {Promise.REFUSES_IN_LIMIT},
    notes={
        Promise.SUMS_TO_ONE: "sums to 1 - lam",
        Promise.REFUSES_IN_LIMIT: "lam = 1 and all scores equal",
    },
)
