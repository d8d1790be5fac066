"""attention_mask and position_ids of transformers as keysift's `keep` and `Positions`.

Letters: B batch, T tokens.
"""

import torch
from torch import Tensor

from keysift.core.errors import ShapeError, UnsupportedError
from keysift.kernels.positions import Positions


def placed(
    tokens_BT: Tensor, mask: Tensor | None, position_ids: Tensor | None, lengths: list[int] | None
) -> tuple[Tensor | None, Positions | None]:
    """Which tokens are real (None: all), and where they stand, if not one after the other.

    `lengths`: how many real tokens each row of the cache holds, if there is one.
    """
    keep_BT = None if mask is None else _real(tokens_BT, mask)
    if position_ids is None:
        return keep_BT, None
    batch, length = tokens_BT.shape
    at_BT = position_ids.expand(batch, length)
    real_BT = torch.ones_like(at_BT, dtype=torch.bool) if keep_BT is None else keep_BT
    first_B1 = torch.tensor(lengths or [0] * batch, device=at_BT.device)[:, None]
    counted_BT = first_B1 + real_BT.cumsum(1) - 1
    if torch.equal(at_BT[real_BT], counted_BT[real_BT]):
        return keep_BT, None
    begins_BT = at_BT == 0
    runs = bool((at_BT[:, 1:] == torch.where(begins_BT[:, 1:], 0, at_BT[:, :-1] + 1)).all())
    if keep_BT is None and not any(lengths or ()) and runs and bool(begins_BT[:, 0].all()):
        return None, Positions.packed([_lengths(row, length) for row in begins_BT])
    raise UnsupportedError(
        "position_ids must count the real tokens of each row, or restart at 0 where a new document begins, without a "
        "mask and without a past; leave them out"
    )


def _real(tokens_BT: Tensor, mask: Tensor) -> Tensor | None:
    batch, length = tokens_BT.shape
    if mask.ndim != 2 or mask.shape[0] != batch or mask.shape[1] < length:
        raise ShapeError(
            f"attention_mask must have {batch} rows of at least {length} columns, got {tuple(mask.shape)}; "
            f"who sees whom is decided by the model's windows"
        )
    keep_BT = mask[:, -length:] != 0
    return None if bool(keep_BT.all()) else keep_BT


def _lengths(begins_T: Tensor, length: int) -> list[int]:
    starts = begins_T.nonzero()[:, 0].tolist()
    return [end - start for start, end in zip(starts, [*starts[1:], length], strict=True)]
