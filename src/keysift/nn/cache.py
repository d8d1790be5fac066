"""The past of a whole model, and the place of each call's tokens in it.

Letters: B batch, T tokens.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from keysift.core.errors import RangeError, ShapeError, UnsupportedError
from keysift.kernels.positions import Positions
from keysift.nn.inference import Inference
from keysift.nn.store import Append, Store


@dataclass(frozen=True, eq=False)
class Reading:
    """What every layer needs to know about one call: where its tokens stand, the choices made, and their place in a
    cache, if there is one."""

    positions: Positions
    inference: Inference = field(default_factory=Inference)
    append: Append | None = None


class Cache:
    """One store for each layer. Made by `model.cache(batch)`, filled by passing it to the model's forward.

    Rows may differ in length: tokens with keep=False are neither seen nor stored. No gradient flows into the past.
    """

    def __init__(self, stores: list[Store], batch: int, *, start: int, inference: Inference) -> None:
        self.stores = stores
        self.start = start
        self.inference = inference
        self.lengths = [0] * batch
        # The longest each row has ever been: what a ring has overwritten does not come back when the row is cropped.
        self._longest = [0] * batch

    @property
    def batch(self) -> int:
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        """Bytes held for keys and values; constant once every finite window is full."""
        return sum(store.nbytes for store in self.stores)

    def place(self, tokens_BT: Tensor, keep_BT: Tensor | None) -> Reading:
        """Where the next tokens stand, row by row."""
        if tokens_BT.shape[0] != self.batch:
            raise ShapeError(
                f"the cache holds {self.batch} rows, got tokens for {tokens_BT.shape[0]}; "
                f"make one with model.cache({tokens_BT.shape[0]}), or use select or repeat"
            )
        tokens = tokens_BT.shape[1]
        starts = [self.start + length for length in self.lengths]
        if keep_BT is None:
            positions = Positions.padded([0] * self.batch, tokens, start=starts).to(tokens_BT.device)
            real = [tokens] * self.batch
        else:
            positions = Positions.masked(keep_BT, start=starts)
            real = keep_BT.sum(1).tolist()
        after = [length + count for length, count in zip(self.lengths, real, strict=True)]
        return Reading(positions, self.inference, Append(self.lengths, after, keep_BT, self.start))

    def advance(self, reading: Reading) -> None:
        """Count the tokens of a finished call."""
        assert reading.append is not None
        self.lengths = reading.append.after
        self._longest = [max(pair) for pair in zip(self._longest, self.lengths, strict=True)]

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order, repeats allowed: beams after a step, or finished rows dropped."""
        if rows.ndim != 1 or rows.dtype != torch.int64 or not len(rows):
            raise ShapeError(
                f"rows must be a list of int64 row numbers, at least one, got {rows.dtype} of shape {tuple(rows.shape)}"
            )
        numbers = rows.tolist()
        if any(not 0 <= number < self.batch for number in numbers):
            raise RangeError(f"the cache holds rows 0 to {self.batch - 1}, got {numbers}")
        for store in self.stores:
            store.select(rows)
        self.lengths = [self.lengths[number] for number in numbers]
        self._longest = [self._longest[number] for number in numbers]

    def repeat(self, times: int) -> None:
        """Each row `times` times, copies side by side."""
        if times < 1:
            raise RangeError(f"each row is repeated at least once, got {times}; drop rows with select")
        self.select(torch.arange(self.batch).repeat_interleave(times))

    def crop(self, tokens: int | Tensor) -> None:
        """Forget the last tokens, the same number in every row or one number for each; refuses what a ring has lost."""
        counts = [tokens] * self.batch if isinstance(tokens, int) else tokens.tolist()
        if not isinstance(tokens, int) and (tokens.shape != (self.batch,) or tokens.dtype != torch.int64):
            raise ShapeError(
                f"crop takes one number, or an int64 one for each of {self.batch} rows, "
                f"got {tokens.dtype} of shape {tuple(tokens.shape)}"
            )
        lengths = [length - count for length, count in zip(self.lengths, counts, strict=True)]
        if not all(0 <= length <= before for length, before in zip(lengths, self.lengths, strict=True)):
            raise RangeError(
                f"crop forgets between 0 and all of a row's tokens, got {counts} with rows of {self.lengths}"
            )
        cut = [row for row, length in enumerate(lengths) if length < self.lengths[row]]
        if not all(store.holds_back_to(lengths[row], self._longest[row]) for store in self.stores for row in cut):
            raise UnsupportedError(
                f"cannot crop {tokens} tokens: a finite window has overwritten keys that would be needed again; "
                f"make the cache with spare={max(counts) - 1} or more, or run the prompt anew"
            )
        self.lengths = lengths
