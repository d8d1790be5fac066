"""Where a mechanism that judges each key alone begins to accept: the score below which a weight is exactly zero."""

import torch
from torch import Tensor

from keysift.kernels import dense
from keysift.lens.reading import Reading
from keysift.mechanisms.rules import Visible
from keysift.mechanisms.spec import Promise

_HALVINGS = 60
_FAR = 64.0  # no score of a working head lies beyond


def threshold(reading: Reading) -> Tensor | None:
    """One number for each head, found by halving; None where keys are compared, nothing is refused exactly, or the
    threshold depends on the token."""
    mechanism = reading.mechanism
    alone = {Promise.ABSOLUTE, Promise.EXACT_ZERO} <= mechanism.holds
    if not alone or mechanism.maps > 1 or any(scalar.per.projected for scalar in mechanism.scalars):
        return None
    _, _, _, scalars = dense.prepare(reading.call)
    far = 1.0 if mechanism.cosine_scores else _FAR
    shape = (1, reading.heads, 1, 1)
    low, high = torch.full(shape, -far, dtype=torch.float64), torch.full(shape, far, dtype=torch.float64)
    here = Visible(torch.ones(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.int64))
    own = {name: value.double() for name, value in scalars.items()}
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        passes = dense.weigh(mechanism, (middle,), here, own) != 0
        high, low = torch.where(passes, middle, high), torch.where(passes, low, middle)
    return high.flatten().float()
