"""Acceptance threshold of a pointwise mechanism: the score below which a weight is exactly zero."""

import torch
from torch import Tensor

from keysift.kernels.eager import dense
from keysift.lens.layer_view import LayerView
from keysift.mechanisms.rules import Visible
from keysift.mechanisms.spec import Promise

_HALVINGS = 60
_MAX_SCORE = 64.0  # scores of trained heads are smaller in magnitude


def threshold(view: LayerView) -> Tensor | None:
    """The threshold of each head, found by bisection.

    None if the mechanism is not pointwise, has no exact zeros, or its threshold depends on the token.
    """
    mechanism = view.mechanism
    has_threshold = {Promise.ABSOLUTE, Promise.EXACT_ZERO} <= mechanism.holds
    if not has_threshold or mechanism.maps > 1 or any(scalar.per.projected for scalar in mechanism.scalars):
        return None
    _, _, _, scalars = dense.prepare(view.call)
    limit = 1.0 if mechanism.cosine_scores else _MAX_SCORE
    shape = (1, view.heads, 1, 1)
    low, high = torch.full(shape, -limit, dtype=torch.float64), torch.full(shape, limit, dtype=torch.float64)
    one_key = Visible(torch.ones(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.int64))
    scalars = {name: value.double() for name, value in scalars.items()}
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        accepted = dense.weigh(mechanism, (middle,), one_key, scalars) != 0
        high, low = torch.where(accepted, middle, high), torch.where(accepted, low, middle)
    return high.flatten().float()
