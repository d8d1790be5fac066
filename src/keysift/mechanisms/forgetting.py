"""Forgetting attention, FoX (arXiv:2503.02130v2): softmax whose scores fall with the forget gates of newer tokens.

    w_ij = softmax_j(x_ij + sum_{l = j+1 .. i} log f_l)  ~  exp(x_ij) prod_{l = j+1 .. i} f_l,   f = sigmoid(u . a + b)

A gate belongs to a token and a query head. The own key is not discounted; the gate of the own token discounts the rest.
Letters: B batch, H heads, S keys.
"""

from torch import Tensor
from torch.nn import functional as F

from keysift.mechanisms.rules import Softmax
from keysift.mechanisms.spec import Mechanism, Per, Promise, Scalar, Site


def log_sigmoid(raw: Tensor, site: Site) -> Tensor:
    """Link function: the logarithm of a sigmoid, which is negative."""
    return F.logsigmoid(raw)


def log_gates(*, log_forget: Tensor) -> Tensor:
    return log_forget


FORGETTING = Mechanism(
    name="forgetting",
    title="Forgetting attention (FoX)",
    source="arXiv:2503.02130v2",
    page="forgetting",
    formula="w_j = softmax(x_j + sum of log f of newer keys), f a forget gate per token and head",
    rule=Softmax(forget=log_gates),
    scalars=(
        Scalar(
            name="log_forget",
            meaning="the logarithm of a token's forget gate, which discounts all older keys; 0 keeps them",
            per=Per.HEAD_KEY,
            link=log_sigmoid,
            bias=True,
            up_to=0.0,
            probes=(-3.0, -0.7, -0.1, 0.0),
        ),
    ),
    holds=frozenset(
        {
            Promise.SUMS_TO_ONE,
            Promise.NONNEGATIVE,
            Promise.BOUNDED,
            Promise.CONVEX_HULL,
            Promise.HULL_WITH_ZERO,
            Promise.SHIFT_INVARIANT,
            Promise.CAUSAL,
            Promise.SINGLE_PASS,
        }
    ),
    notes={Promise.REFUSES_IN_LIMIT: "gates of 0 leave the own value: it forgets, it cannot refuse"},
    causal_only=True,
)
