"""Stick-breaking attention (arXiv:2410.17980v1): each key takes a share of what newer keys have left.

    b = sigmoid(x),   w_j = b_j prod_{l newer than j} (1 - b_l),   rest = prod_l (1 - b_l) = 1 - sum w

The newest visible key comes first, so that older keys never change the weight of a newer one. Logarithms are summed:

    log w_j = -softplus(-x_j) - sum_{l newer} softplus(x_l)

The key of the query itself takes no part, unless `own_key`. The rest is dropped, given to the value of the query's own
token, or to a learned vector per head.
Letters: B batch, H heads, T queries, S keys, V value width.
"""

from dataclasses import replace
from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from keysift.mechanisms.rules import StickBreaking
from keysift.mechanisms.spec import Mechanism, Per, Promise, Scalar

Rest = Literal["dropped", "own", "learned"]

_HOLDS = frozenset(
    {
        Promise.NONNEGATIVE,
        Promise.BOUNDED,
        Promise.HULL_WITH_ZERO,
        Promise.REFUSES_IN_LIMIT,
        Promise.CAUSAL,
        Promise.SINGLE_PASS,
    }
)
_NOTES = {
    Promise.SUMS_TO_ONE: "sums to 1 - prod (1 - b)",
    Promise.ABSOLUTE: "holds on one side: an older key never changes the weight of a newer one",
}


def shares(x_BHTS: Tensor) -> tuple[Tensor, Tensor]:
    """log sigmoid(x) and log(1 - sigmoid(x))."""
    return F.logsigmoid(x_BHTS), F.logsigmoid(-x_BHTS)


_REST = Scalar(
    name="rest",
    meaning="the value of the weight that no key has taken",
    per=Per.HEAD_CHANNEL,
    probes=(0.0, 0.8, -1.5),
)


def variant(*, rest: Rest = "dropped", own_key: bool = False) -> Mechanism:
    """Stick-breaking with this use of the rest, and with or without the key of the query itself."""
    plain = Mechanism(
        name="stick_breaking" + ("_own_key" if own_key else ""),
        title="Stick-breaking" + (" with the own key" if own_key else ""),
        source="arXiv:2410.17980v1",
        page="stick_breaking",
        formula="w_j = sigmoid(x_j) prod (1 - sigmoid(x_l)), l newer than j"
        + ("" if own_key else ", own key left out"),
        rule=StickBreaking(shares=shares),
        holds=_HOLDS,
        notes=_NOTES,
        causal_only=True,
        own_key=own_key,
    )
    if rest == "dropped":
        return plain
    if rest == "learned":
        return replace(
            plain,
            name=plain.name + "_learned",
            title=plain.title + ", the rest to a learned vector",
            formula=plain.formula + "; output + (1 - sum w) u",
            scalars=(_REST,),
            rest_value="rest",
            holds=_HOLDS - {Promise.HULL_WITH_ZERO},
        )
    return replace(
        plain,
        name=plain.name + "_rest",
        title=plain.title + ", the rest to the own value",
        formula=plain.formula + "; w_own + (1 - sum w)",
        rule=StickBreaking(shares=shares, own_takes=own_key, rest_to_own=True),
        own_key=True,
        holds=(_HOLDS | {Promise.SUMS_TO_ONE, Promise.CONVEX_HULL}) - {Promise.REFUSES_IN_LIMIT},
        notes={Promise.ABSOLUTE: "holds on one side: an older key changes the weight of no newer one but the own"},
    )


STICK_BREAKING = variant()
STICK_BREAKING_OWN_KEY = variant(own_key=True)
STICK_BREAKING_REST = variant(rest="own")
STICK_BREAKING_LEARNED = variant(rest="learned")
