"""The past of a whole model, and the place of each call's tokens in it.

Letters: B batch, T tokens.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from keysift.core.errors import RangeError, ShapeError, UnsupportedError
from keysift.nn.inference import Inference
from keysift.nn.store import Store, Write


@dataclass(frozen=True)
class Span:
    """What every layer needs to know about the tokens of one call: integer positions, which are real, the choices."""

    at_BT: Tensor  # or 1 T where all rows agree
    keep_BT: Tensor | None
    inference: Inference = field(default_factory=Inference)
    write: Write | None = None
    documents_BT: Tensor | None = None  # tokens see those of their own document only
    lengths: list[int] | None = None  # of the documents, one row after the other, where they are known
    counted: bool = False  # at_BT is 0, 1, 2, ..., and nobody need look to know


class Cache:
    """One store for each layer. Made by `model.cache(batch)`, filled by passing it to the model's forward.

    Rows may differ in length: tokens with keep=False are neither seen nor stored. No gradient flows into the past.
    """

    def __init__(
        self, stores: list[Store], batch: int, *, start: int, inference: Inference, device: torch.device
    ) -> None:
        self.stores = stores
        self.start = start
        self.inference = inference
        self.seen_B = torch.zeros(batch, dtype=torch.int64, device=device)
        self._longest = 0
        self._even = True

    @property
    def batch(self) -> int:
        return len(self.seen_B)

    @property
    def nbytes(self) -> int:
        """Bytes held for keys, values and their places; constant once every finite window is full."""
        return sum(store.nbytes for store in self.stores)

    def place(self, tokens_BT: Tensor, keep_BT: Tensor | None) -> Span:
        """Where the next tokens stand, row by row."""
        if tokens_BT.shape[0] != self.batch:
            raise ShapeError(
                f"the cache holds {self.batch} rows, got tokens for {tokens_BT.shape[0]}; "
                f"make one with model.cache({tokens_BT.shape[0]}), or use select or repeat"
            )
        keep = torch.ones_like(tokens_BT, dtype=torch.bool) if keep_BT is None else keep_BT
        index_BT = self.seen_B[:, None] + keep.cumsum(1) - 1
        ends_B = self.seen_B + keep.sum(1)
        even = self._even and keep_BT is None
        write = Write(index_BT, keep, ends_B, self._longest + tokens_BT.shape[1], self.start, even)
        return Span(self.start + index_BT, keep_BT, self.inference, write)

    def advance(self, span: Span) -> None:
        """Count the tokens of a finished call."""
        assert span.write is not None
        self.seen_B = span.write.ends_B
        if span.keep_BT is None:
            self._longest = span.write.end
        else:
            self._measure()

    def _measure(self) -> None:
        shortest, self._longest = (int(bound) for bound in self.seen_B.aminmax())
        self._even = shortest == self._longest

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order, repeats allowed: beams after a step, or finished rows dropped."""
        if rows.ndim != 1 or rows.dtype != torch.int64:
            raise ShapeError(f"rows must be a list of int64 row numbers, got {rows.dtype} with {rows.ndim} axes")
        for store in self.stores:
            store.select(rows)
        self.seen_B = self.seen_B.index_select(0, rows)
        self._measure()

    def repeat(self, times: int) -> None:
        """Each row `times` times, copies side by side."""
        self.select(torch.arange(self.batch, device=self.seen_B.device).repeat_interleave(times))

    def crop(self, tokens: int | Tensor) -> None:
        """Forget the last tokens, the same number in every row or one number for each; refuses what a ring has lost."""
        length_B = self.seen_B - tokens
        if not bool(((length_B >= 0) & (length_B <= self.seen_B)).all()):
            raise RangeError(
                f"crop forgets between 0 and all of a row's tokens, got {tokens} with rows of {self.seen_B.tolist()}"
            )
        cut = length_B < self.seen_B
        if bool(cut.any()) and not all(store.holds_back_to(length_B) for store in self.stores):
            raise UnsupportedError(
                f"cannot crop {tokens} tokens: a finite window has overwritten keys that would be needed again; "
                f"make the cache with spare={int((self.seen_B - length_B).max()) - 1} or more, or run the prompt anew"
            )
        for store in self.stores:
            store.crop(length_B)
        self.seen_B = length_B
        self._measure()
