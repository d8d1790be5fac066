"""Softmax attention, the baseline (arXiv:1706.03762v7).

w_ts = exp(x_ts) / sum_l exp(x_tl)        over the keys l that are visible to query t
"""

from keysift.mechanisms.rules import Softmax
from keysift.mechanisms.spec import Mechanism, Promise

SOFTMAX = Mechanism(
    name="softmax",
    title="Softmax",
    source="arXiv:1706.03762v7",
    page="softmax",
    formula="w = exp(x) / sum exp(x)",
    rule=Softmax(),
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
)
