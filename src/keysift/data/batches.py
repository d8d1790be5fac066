"""Batches in a shuffled order that one integer resumes.

Sequence i of a split is its tokens [iT, iT + T], the last one being only a target. Step n of training reads the
sequences number nB, ..., nB + B - 1 of an endless order: one permutation of all sequences for each epoch. Nothing is
carried from step to step, so a run resumed at step n reads what it would have read.

Letters: B sequences in the batch, T context.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from keysift.core.errors import DataError, RangeError
from keysift.data.corpus import Split
from keysift.data.order import permute

IGNORE = -100  # what torch's cross_entropy leaves out of the loss


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Inputs and targets, B T in int64; a target is -100 where nothing is to be predicted.

    With isolation, `segments` numbers the documents of a row and `positions` counts from the start of each.
    """

    inputs: Tensor
    targets: Tensor
    rows: tuple[int, ...]  # numbers of the sequences in the split, to name a batch in a diagnosis
    segments: Tensor | None = None
    positions: Tensor | None = None

    @property
    def keep(self) -> Tensor | None:
        """B 1 T T, true where query and key are of one document; causality is the mechanism's own affair."""
        if self.segments is None:
            return None
        return (self.segments[:, :, None] == self.segments[:, None, :])[:, None]

    def to(self, device: torch.device | str) -> Self:
        def move(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device, non_blocking=True)

        inputs, targets = self.inputs.to(device, non_blocking=True), self.targets.to(device, non_blocking=True)
        segments, positions = move(self.segments), move(self.positions)
        return type(self)(inputs=inputs, targets=targets, rows=self.rows, segments=segments, positions=positions)


class Batches:
    """`batch(step)` of a split. `isolate` keeps the documents of a sequence apart; `shuffle=False` reads in order."""

    def __init__(
        self,
        split: Split,
        *,
        context: int,
        batch_size: int,
        seed: int = 0,
        isolate: bool = False,
        shuffle: bool = True,
    ) -> None:
        if context < 1 or batch_size < 1:
            raise RangeError(f"context and batch_size must be at least 1, got {context} and {batch_size}")
        self.sequences = (split.tokens - 1) // context
        if self.sequences < 1:
            raise DataError(
                f"{split.name} has {split.tokens} tokens, less than one sequence of {context} and its last target; "
                f"use a smaller context, more text or another validation share"
            )
        self.split = split
        self.context = context
        self.batch_size = batch_size
        self.seed = seed
        self.isolate = isolate
        self.shuffle = shuffle

    @property
    def stream_hash(self) -> str:
        """Equal for two runs that read the same tokens in the same order with the same targets."""
        told = [self.split.hash, self.context, self.seed if self.shuffle else None, self.isolate]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()

    @property
    def steps(self) -> int:
        """Whole batches in one epoch."""
        return self.sequences // self.batch_size

    def epoch(self, step: int) -> float:
        """How many times the split has been read before `step`."""
        return step * self.batch_size / self.sequences

    def batch(self, step: int, part: int = 0, parts: int = 1) -> Batch:
        """The batch of `step`, or one of `parts` equal parts of it: what one process reads in one accumulation turn."""
        wanted = np.asarray(rows_of(step, self.batch_size, part, parts), np.int64)
        rows = self._order(wanted)
        T = self.context
        tokens = np.stack([self.split.read(row * T, row * T + T + 1) for row in rows.tolist()]).astype(np.int64)
        inputs, targets = torch.from_numpy(tokens[:, :-1].copy()), torch.from_numpy(tokens[:, 1:].copy())
        names = tuple(rows.tolist())
        if not self.isolate:
            return Batch(inputs=inputs, targets=targets, rows=names)
        marks = [self.split.segments(row * T, row * T + T + 1) for row in names]
        segments = torch.from_numpy(np.stack([segment for segment, _ in marks]))
        positions = torch.from_numpy(np.stack([position for _, position in marks]))
        # The first token of a document cannot be told from the end of another.
        targets[segments[:, 1:] != segments[:, :-1]] = IGNORE
        return Batch(inputs=inputs, targets=targets, rows=names, segments=segments[:, :-1], positions=positions[:, :-1])

    def _order(self, numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        epochs, within = np.divmod(numbers, self.sequences)
        if not self.shuffle:
            return within
        shuffled = np.empty_like(within)
        for epoch in np.unique(epochs).tolist():
            chosen = epochs == epoch
            shuffled[chosen] = permute(within[chosen], self.sequences, f"{self.seed} {epoch}")
        return shuffled


def rows_of(step: int, batch_size: int, part: int, parts: int) -> range:
    """Numbers in the endless order that one part of a step reads."""
    if step < 0:
        raise RangeError(f"steps are counted from 0, got {step}")
    if parts < 1 or batch_size % parts:
        raise RangeError(
            f"a batch of {batch_size} sequences cannot be divided in {parts} equal parts; change one of them"
        )
    if not 0 <= part < parts:
        raise RangeError(f"part must be from 0 to {parts - 1}, got {part}")
    share = batch_size // parts
    start = step * batch_size + part * share
    return range(start, start + share)
