"""Powers of ReLU over the length (arXiv:2309.08586v2).

    w = max(x, 0)^p / L,   p = 1 or 2

L is a constant (`relu`, `relu_squared`: each key is judged alone) or the keys the query sees (`relu_visible`).
Letters: B batch, H heads, T queries, S keys.
"""

import torch
from torch import Tensor

from keysift.mechanisms.spec import Mechanism, Per, Promise, Rows, Scalar

_HOLDS = frozenset(
    {
        Promise.NONNEGATIVE,
        Promise.EXACT_ZERO,
        Promise.REFUSES_EXACTLY,
        Promise.REFUSES_IN_LIMIT,
        Promise.CAUSAL,
        Promise.SINGLE_PASS,
        Promise.BLOCKS_SKIPPABLE,
    }
)
_SCALE = {Promise.SCALE_INVARIANT: "homogeneous instead: degree p in the product of the two factors"}


def relu_power(power: int) -> Mechanism:
    """max(x, 0)^power over a constant length."""

    def weigh(x_BHTS: Tensor, rows: Rows, *, length: Tensor) -> Tensor:
        return torch.where(rows.keep_BHTS, torch.relu(x_BHTS).pow(power) / length, 0.0)

    return Mechanism(
        name={1: "relu", 2: "relu_squared"}.get(power, f"relu_{power}"),
        title="ReLU over L" if power == 1 else f"ReLU^{power} over L",
        source="arXiv:2309.08586v2",
        page="relu_power",
        formula=f"w = max(x, 0){'' if power == 1 else f'^{power}'} / L, L the context length",
        weigh=weigh,
        scalars=(
            Scalar(
                name="length",
                meaning="the context length every weight is divided by",
                per=Per.HEAD,
                init=lambda site, generator: torch.tensor(site.context, dtype=torch.float64),
                above=0.0,
                learned=False,
                probes=(1.0, 4.0, 64.0),
            ),
        ),
        holds=_HOLDS | {Promise.ABSOLUTE, Promise.REFUSED_INERT},
        notes=_SCALE,
    )


def weigh_visible(x_BHTS: Tensor, rows: Rows) -> Tensor:
    return torch.where(rows.keep_BHTS, torch.relu(x_BHTS) / rows.seen_BHT1.clamp_min(1), 0.0)


RELU_VISIBLE = Mechanism(
    name="relu_visible",
    title="ReLU over L, L counted per row",
    source="arXiv:2309.08586v2",
    page="relu_power",
    formula="w = max(x, 0) / n, n the keys the query sees",
    weigh=weigh_visible,
    holds=_HOLDS,
    notes=_SCALE | {Promise.REFUSED_INERT: "a refused key still counts in n"},
)
