"""Plain numbers in, weights out: what each mechanism makes of a row of scores."""

from collections.abc import Sequence

import torch
from torch import Tensor

from keysift.core import shapes
from keysift.core.errors import RangeError, ShapeError
from keysift.kernels import dense
from keysift.kernels.call import Scalars, align
from keysift.mechanisms import find
from keysift.mechanisms.rules import Visible
from keysift.mechanisms.spec import Mechanism, Site


def weigh(
    mechanism: str | Mechanism,
    scores: Tensor | Sequence[float],
    *,
    second: Tensor | Sequence[float] | None = None,
    keep: Tensor | Sequence[bool] | None = None,
    distance: Tensor | Sequence[int] | None = None,
    scalars: Scalars | None = None,
) -> Tensor:
    """The weights of rows of scores (the last axis runs over keys), already scaled; no positions unless given.

    second     scores of the second map, for mechanisms that compare two; by default all equal
    keep       which keys take part, by default all
    distance   how many positions before the query each key stands, by default 0 for all
    scalars    the mechanism's scalars, one number each; what is left out takes its initial value

    Where a mechanism reads cosines (screening), a score is a cosine in [-1, 1], here as on the command line.
    """
    found = find(mechanism)
    x = _rows("scores", scores)
    shapes.not_empty("scores", "key", x.shape[-1])
    y = torch.zeros_like(x) if second is None else _rows("second", second).to(x.dtype)
    shapes.broadcastable("second", y, "." * x.ndim, x.shape)
    kept = torch.ones_like(x, dtype=torch.bool) if keep is None else torch.as_tensor(keep, device=x.device)
    if kept.dtype != torch.bool:
        raise ShapeError(f"keep must be boolean (True: take part), got {kept.dtype}")
    away = torch.zeros_like(x, dtype=torch.int64) if distance is None else torch.as_tensor(distance, device=x.device)
    for name, mask in (("keep", kept), ("distance", away)):
        shapes.broadcastable(name, mask, "." * x.ndim, x.shape)
    for name, map_ in (("scores", x), ("second", y)):
        outside = ~(map_.abs() <= 1) & kept
        if found.cosine_scores and bool(outside.any()):
            raise RangeError(
                f"{found.name} reads {name} as cosines in [-1, 1], got {map_.expand(x.shape)[outside][0].item():g}; "
                f"divide by the lengths of q and k first"
            )
    visible = Visible(_as_row(kept.expand(x.shape)), _as_row(away.expand(x.shape)))
    aligned = align(found, scalars, Site(), dict.fromkeys("BHGTSV", 1), carry=x.dtype, device=x.device)
    maps = (_as_row(x), _as_row(y.expand(x.shape)))[: found.maps]
    return dense.weigh(found, maps, visible, aligned).reshape(x.shape)


def _rows(name: str, values: Tensor | Sequence[float]) -> Tensor:
    x = torch.as_tensor(values)
    if x.ndim == 0:
        raise ShapeError(f"{name} must be a row of numbers, got one number; pass a list like [2.0, 1.0]")
    return x if x.dtype == torch.float64 else x.to(torch.float32)


def _as_row(x: Tensor) -> Tensor:
    return x.reshape(1, 1, -1, x.shape[-1])
