"""Scalars of a mechanism for one call: checked, completed with defaults, and shaped to broadcast.

Letters: B batch, H heads, G key heads, T queries, S keys, V value width.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from keysift.core import shapes
from keysift.core.errors import ShapeError, UnknownNameError
from keysift.core.registry import nearest
from keysift.kernels.transforms import can_inspect_values
from keysift.mechanisms.spec import Mechanism, Per, Site

Value = Tensor | float
Scalars = Mapping[str, Value]


class AlignedScalars(dict[str, Tensor]):
    """Scalars that `align_scalars` has already checked and shaped; a call that receives them checks nothing again."""


def accumulation_dtype(x: Tensor) -> torch.dtype:
    """The dtype of statistics and sums: fp32, or fp64 for fp64 inputs."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def align_scalars(
    mechanism: Mechanism,
    given: Scalars | None,
    site: Site,
    sizes: Mapping[str, int],
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> AlignedScalars:
    """Every scalar the mechanism needs, given or default, checked and shaped to broadcast against B H T S."""
    given = given or {}
    known = [scalar.name for scalar in mechanism.scalars]
    for name in given:
        if name not in known:
            raise UnknownNameError(
                f"{mechanism.name} has no scalar {name!r}; {nearest(name, known)}it takes: {', '.join(known) or 'none'}"
            )
    aligned = AlignedScalars()
    for scalar in mechanism.scalars:
        if scalar.name not in given and scalar.follows is not None:
            aligned[scalar.name] = aligned[scalar.follows]
            continue
        value = given[scalar.name] if scalar.name in given else scalar.default(site)
        if isinstance(value, bool) or (isinstance(value, Tensor) and value.dtype == torch.bool):
            raise ShapeError(
                f"{scalar.name} is {scalar.meaning}: a number, got a boolean; pass {float(scalar.probes[0])}"
            )
        tensor = torch.as_tensor(value, dtype=dtype, device=device)
        shapes.broadcastable(scalar.name, tensor, scalar.per.value or "()", [sizes[axis] for axis in scalar.per.value])
        if can_inspect_values():  # in compiled code the layer's link functions ensure the range
            scalar.check(mechanism.name, tensor)
        aligned[scalar.name] = _view(tensor.expand([sizes[axis] for axis in scalar.per.value]), scalar.per)
    return aligned


def _view(tensor: Tensor, per: Per) -> Tensor:
    if per is Per.HEAD:
        return tensor[:, None, None]
    if per is Per.HEAD_CHANNEL:
        return tensor[:, None, :]
    return tensor[..., None] if per in (Per.QUERY, Per.KEY, Per.HEAD_KEY) else tensor
