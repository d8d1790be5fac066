"""`weigh`: the weights a mechanism assigns to rows of scores."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from keysift.core import shapes
from keysift.core.errors import RangeError, ShapeError
from keysift.kernels.eager import dense
from keysift.kernels.scalars import Scalars, align_scalars
from keysift.mechanisms import find
from keysift.mechanisms.rules import Visible
from keysift.mechanisms.spec import Mechanism, Site

# A row of scores belongs to no model. The context is short, so that weights divided by its length stay readable, and so
# are the keys, so that thresholds that follow their width leave some keys.
ROW_SITE = Site(context=4, key_width=4)


def default_scalars(mechanism: str | Mechanism) -> dict[str, float]:
    """The values that `weigh` uses for scalars that are not given."""
    return {s.name: s.default(ROW_SITE).mean().item() for s in find(mechanism).scalars if s.follows is None}


def weigh(
    mechanism: str | Mechanism,
    scores: Tensor | Sequence[float],
    *,
    second: Tensor | Sequence[float] | None = None,
    keep: Tensor | Sequence[bool] | None = None,
    distance: Tensor | Sequence[int] | None = None,
    scalars: Scalars | None = None,
) -> Tensor:
    """The weights of rows of scaled scores; the last axis is that of the keys.

    second     scores of the second map, for mechanisms that compare two; by default all equal
    keep       boolean mask of the keys, by default all True
    distance   position of the query minus that of each key; by default 0, or, where the order of keys matters, the keys
               that end at the query, oldest first
    scalars    the mechanism's scalars, one number each; missing scalars take their values from `default_scalars`

    For mechanisms that read cosines (screening), scores are cosines in [-1, 1]. A visible NaN makes its row NaN.
    """
    spec = find(mechanism)
    x = _rows("scores", scores)
    shapes.not_empty("scores", "key", x.shape[-1])
    y = torch.zeros_like(x) if second is None else _rows("second", second).to(x.dtype)
    shapes.broadcastable("second", y, "." * x.ndim, x.shape)
    mask = torch.ones_like(x, dtype=torch.bool) if keep is None else torch.as_tensor(keep, device=x.device)
    if mask.dtype != torch.bool:
        raise ShapeError(f"keep must be boolean (True: attend to the key), got {mask.dtype}")
    distances = _distances(spec, x) if distance is None else torch.as_tensor(distance, device=x.device)
    if not spec.own_key:
        mask = mask & (distances > 0)
    for name, given in (("keep", mask), ("distance", distances)):
        shapes.broadcastable(name, given, "." * x.ndim, x.shape)
    for name, given in (("scores", x), ("second", y)):
        outside = ~(given.abs() <= 1) & mask
        if spec.cosine_scores and bool(outside.any()):
            raise RangeError(
                f"{spec.name} reads {name} as cosines in [-1, 1], got {given.expand(x.shape)[outside][0].item():g}; "
                f"divide by the lengths of q and k first"
            )
    visible = Visible(_as_row(mask.expand(x.shape)), _as_row(distances.expand(x.shape)), in_order=distance is None)
    aligned = align_scalars(spec, scalars, ROW_SITE, dict.fromkeys("BHGTSV", 1), dtype=x.dtype, device=x.device)
    maps = (_as_row(x), _as_row(y.expand(x.shape)))[: spec.maps]
    weights = dense.weigh(spec, maps, visible, aligned).reshape(x.shape)
    # Comparisons with zero would lose a NaN.
    nan_rows = ((x.isnan() | y.isnan()) & mask).any(-1, keepdim=True)
    return torch.where(nan_rows & mask, math.nan, weights)


def _distances(mechanism: Mechanism, x: Tensor) -> Tensor:
    if not mechanism.rule.ordered and mechanism.own_key:
        return torch.zeros_like(x, dtype=torch.int64)
    nearest = 0 if mechanism.own_key else 1
    return torch.arange(x.shape[-1] - 1 + nearest, nearest - 1, -1, device=x.device)


def _rows(name: str, values: Tensor | Sequence[float]) -> Tensor:
    x = torch.as_tensor(values)
    if x.ndim == 0:
        raise ShapeError(f"{name} must be a row of numbers, got one number; pass a list like [2.0, 1.0]")
    return x if x.dtype == torch.float64 else x.to(torch.float32)


def _as_row(x: Tensor) -> Tensor:
    return x.reshape(1, 1, -1, x.shape[-1])
