"""Convert attention_mask and position_ids of transformers to keysift's `keep` mask and `Positions`.

Letters: B batch, T tokens.
"""

import torch
from torch import Tensor

from keysift.core.errors import ShapeError, UnsupportedError
from keysift.kernels.positions import Positions


def keep_and_positions(
    tokens_BT: Tensor, mask: Tensor | None, position_ids: Tensor | None, lengths: list[int] | None
) -> tuple[Tensor | None, Positions | None]:
    """The mask of real tokens (None: all), and the positions (None: consecutive).

    `lengths` are the numbers of real tokens in each row of the cache, if there is one.
    """
    keep_BT = None if mask is None else _keep_mask(tokens_BT, mask)
    if position_ids is None:
        return keep_BT, None
    batch, length = tokens_BT.shape
    at_BT = position_ids.expand(batch, length)
    real_BT = torch.ones_like(at_BT, dtype=torch.bool) if keep_BT is None else keep_BT
    first_B1 = torch.tensor(lengths or [0] * batch, device=at_BT.device)[:, None]
    consecutive_BT = first_B1 + real_BT.cumsum(1) - 1
    if torch.equal(at_BT[real_BT], consecutive_BT[real_BT]):
        return keep_BT, None
    begins_BT = at_BT == 0
    documents = bool((at_BT[:, 1:] == torch.where(begins_BT[:, 1:], 0, at_BT[:, :-1] + 1)).all())
    if keep_BT is None and not any(lengths or ()) and documents and bool(begins_BT[:, 0].all()):
        return None, Positions.packed([_document_lengths(row, length) for row in begins_BT])
    raise UnsupportedError(
        "position_ids must count the real tokens of each row, or restart at 0 for each document (without a mask "
        "and without a cache); leave them out"
    )


def _keep_mask(tokens_BT: Tensor, mask: Tensor) -> Tensor | None:
    batch, length = tokens_BT.shape
    if mask.ndim != 2 or mask.shape[0] != batch or mask.shape[1] < length:
        raise ShapeError(
            f"attention_mask must have {batch} rows of at least {length} columns, got {tuple(mask.shape)}; "
            f"it marks padding only, the model's windows decide which keys are visible"
        )
    keep_BT = mask[:, -length:] != 0
    return None if bool(keep_BT.all()) else keep_BT


def last_real_columns(x_BTD: Tensor, mask: Tensor | None) -> Tensor:
    """`x_BTD` with right padding replaced by the last real column before it."""
    if mask is None or bool(mask[:, -1].all()):
        return x_BTD
    length = x_BTD.shape[1]
    real_BT = mask[:, -length:] != 0
    column_BT = torch.where(real_BT, torch.arange(length, device=mask.device), 0).cummax(1).values
    return x_BTD.take_along_dim(column_BT[..., None], dim=1)


def _document_lengths(begins_T: Tensor, length: int) -> list[int]:
    starts = begins_T.nonzero()[:, 0].tolist()
    return [end - start for start, end in zip(starts, [*starts[1:], length], strict=True)]
