"""Decode cache of a model, and the context that every layer receives with a call.

Letters: B batch, T tokens.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from keysift.core.errors import RangeError, ShapeError, UnsupportedError
from keysift.kernels.positions import Positions
from keysift.nn.inference import Inference
from keysift.nn.layer_cache import CacheUpdate, KeyCounts, LayerCache


@dataclass(frozen=True, eq=False)
class AttentionContext:
    """Positions and options of one forward call, shared by all layers.

    `update` says which cache entries the call appends; None without a cache.
    """

    positions: Positions
    inference: Inference = field(default_factory=Inference)
    update: CacheUpdate | None = None
    rotary_tables: dict[Any, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Cosines and sines of rotary embeddings, computed once per call for the layers that share them."""


class Cache:
    """Keys and values of past tokens, one `LayerCache` per layer.

    `model.cache(batch)` creates it; passing it to the model's forward fills it. Rows may differ in length: tokens with
    keep=False are masked and not stored. No gradient flows into cached entries.
    """

    def __init__(self, layers: list[LayerCache], batch: int, *, start: int, inference: Inference) -> None:
        self.layers = layers
        self.start = start
        self.inference = inference
        self.lengths = [0] * batch
        # C structures of the compiled step, which point into the layers.
        self.bound: Any = None
        # The longest length of each row so far: cropping a row does not restore entries that a ring has overwritten.
        self._longest = [0] * batch

    @property
    def batch(self) -> int:
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        """Bytes of stored keys and values; constant once every finite window is full."""
        return sum(layer_cache.nbytes for layer_cache in self.layers)

    def key_counts(self) -> list[KeyCounts | None]:
        """For each layer, the keys that the latest decoded token read and accepted (docs/search.md).

        None for layers without screening, and if the latest token did not run through the compiled step.
        """
        return [layer_cache.key_counts() for layer_cache in self.layers]

    def next_context(self, tokens_BT: Tensor, keep_BT: Tensor | None) -> AttentionContext:
        """Context of a call that appends these tokens: each row continues at its own length."""
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
        return AttentionContext(positions, self.inference, CacheUpdate(self.lengths, after, keep_BT, self.start))

    def advance(self, context: AttentionContext) -> None:
        """Add the tokens of a finished call to the row lengths."""
        assert context.update is not None
        self.lengths = context.update.after
        self._longest = [max(pair) for pair in zip(self._longest, self.lengths, strict=True)]

    def advance_by_one(self) -> None:
        """Add one token to every row, stored by the compiled step."""
        self.lengths = [length + 1 for length in self.lengths]
        self._longest = [max(pair) for pair in zip(self._longest, self.lengths, strict=True)]

    def select(self, rows: Tensor) -> None:
        """Keep these rows in this order; repeats are allowed. Use it to reorder beams or to drop finished rows."""
        if rows.ndim != 1 or rows.dtype != torch.int64 or not len(rows):
            raise ShapeError(
                f"rows must be a list of int64 row numbers, at least one, got {rows.dtype} of shape {tuple(rows.shape)}"
            )
        numbers = rows.tolist()
        if any(not 0 <= number < self.batch for number in numbers):
            raise RangeError(f"the cache holds rows 0 to {self.batch - 1}, got {numbers}")
        for layer_cache in self.layers:
            layer_cache.select(rows)
        self.lengths = [self.lengths[number] for number in numbers]
        self._longest = [self._longest[number] for number in numbers]

    def repeat(self, times: int) -> None:
        """Repeat each row `times` times, copies next to each other."""
        if times < 1:
            raise RangeError(f"each row is repeated at least once, got {times}; drop rows with select")
        self.select(torch.arange(self.batch).repeat_interleave(times))

    def crop(self, tokens: int | Tensor) -> None:
        """Remove the last `tokens` tokens of every row, or a number per row.

        Raises UnsupportedError if a ring has overwritten entries that the shorter row needs.
        """
        counts = [tokens] * self.batch if isinstance(tokens, int) else tokens.tolist()
        if not isinstance(tokens, int) and (tokens.shape != (self.batch,) or tokens.dtype != torch.int64):
            raise ShapeError(
                f"crop takes one number, or an int64 tensor with a number for each of {self.batch} rows, "
                f"got {tokens.dtype} of shape {tuple(tokens.shape)}"
            )
        lengths = [length - count for length, count in zip(self.lengths, counts, strict=True)]
        if not all(0 <= length <= before for length, before in zip(lengths, self.lengths, strict=True)):
            raise RangeError(
                f"crop removes between 0 and all of a row's tokens, got {counts} with rows of {self.lengths}"
            )
        cut = [row for row, length in enumerate(lengths) if length < self.lengths[row]]
        if not all(
            layer_cache.can_crop_to(lengths[row], self._longest[row]) for layer_cache in self.layers for row in cut
        ):
            raise UnsupportedError(
                f"cannot crop {tokens} tokens: a finite window has overwritten keys that would be needed again "
                f"(a layer that shifts keys counts as one with a window of 2); "
                f"make the cache with spare={max(counts) - 1} or more, or run the prompt again"
            )
        self.lengths = lengths
