"""Batches in a shuffled order that depends on the step number alone.

Sequence i of a split is tokens iT to iT + T, of which the last is only a target. With whole documents, a sequence holds
as many documents as fit in T + 1 tokens, and the rest is padding without targets. Step n reads sequences nB to
nB + B - 1 of an endless order: one permutation of all sequences per epoch. No state is kept between steps, so a run
that resumes at step n reads the same batches as one that never stopped.

Letters: B sequences in the batch, T context.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from keysift.core.errors import DataError, RangeError
from keysift.data.corpus import Split
from keysift.data.order import permute
from keysift.kernels.positions import Positions

IGNORE = -100  # target that torch's cross_entropy ignores


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Inputs and targets, both B T in int64. A target of -100 is ignored.

    With isolated documents, `positions` restart at each document, and no document attends to another.
    """

    inputs: Tensor
    targets: Tensor
    rows: tuple[int, ...]  # numbers of the sequences in the split, for diagnoses
    positions: Positions | None = None
    answers: bool = False  # targets are answers of a task, so accuracy is meaningful

    def to(self, device: torch.device | str) -> Self:
        inputs, targets = self.inputs.to(device, non_blocking=True), self.targets.to(device, non_blocking=True)
        positions = None if self.positions is None else self.positions.to(device)
        return replace(self, inputs=inputs, targets=targets, positions=positions)


class Batches:
    """Batches of a split by step number.

    isolate   do not attend across documents
    whole     pack whole documents instead of cutting the token stream
    shuffle   False reads sequences in order
    """

    def __init__(
        self,
        split: Split,
        *,
        context: int,
        batch_size: int,
        seed: int = 0,
        isolate: bool = False,
        whole: bool = False,
        shuffle: bool = True,
    ) -> None:
        if context < 1 or batch_size < 1:
            raise RangeError(f"context and batch_size must be at least 1, got {context} and {batch_size}")
        self._starts = _packed(split, context) if whole else None
        self.sequences = (split.tokens - 1) // context if self._starts is None else len(self._starts) - 1
        if self.sequences < 1:
            raise DataError(
                f"{split.name} has {split.tokens} tokens, less than one sequence of {context} and its last target; "
                f"use a smaller context, more text or another val_fraction"
            )
        self.split = split
        self.context = context
        self.batch_size = batch_size
        self.seed = seed
        self.isolate = isolate
        self.whole = whole
        self.shuffle = shuffle

    @property
    def stream_hash(self) -> str:
        """Hash of the tokens, their order and the targets."""
        identity = [self.split.hash, self.context, self.seed if self.shuffle else None, self.isolate, self.whole]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()

    @property
    def tokens(self) -> int:
        return self.split.tokens

    @property
    def bytes_per_token(self) -> float:
        return self.split.bytes_per_token

    def batch(self, step: int, part: int = 0, parts: int = 1) -> Batch:
        """The batch of a step, or one of `parts` equal parts of it (one rank in one accumulation step)."""
        numbers = np.asarray(rows_of(step, self.batch_size, part, parts), np.int64)
        rows = tuple(self._order(numbers).tolist())
        pieces = [self._tokens(row) for row in rows]
        tokens, real = (np.stack(part) for part in zip(*pieces, strict=True))
        inputs, targets = torch.from_numpy(tokens[:, :-1].copy()), torch.from_numpy(tokens[:, 1:].copy())
        targets[torch.from_numpy(~real[:, 1:])] = IGNORE
        if not self.isolate:
            return Batch(inputs=inputs, targets=targets, rows=rows)
        lengths = []
        for number, row in enumerate(rows):
            begins = self.split.begins(*self._span(row))
            # The first token of a document cannot be predicted from another document.
            targets[number, begins[begins > 0] - 1] = IGNORE
            length = min(self.context, int(real[number].sum()))
            lengths.append(np.diff(np.append(begins[begins < length], length)).tolist())
        positions = Positions.packed(lengths, self.context)
        return Batch(inputs=inputs, targets=targets, rows=rows, positions=positions)

    def _span(self, row: int) -> tuple[int, int]:
        """First and last token of a sequence in the split, including its last target."""
        if self._starts is not None:
            return int(self._starts[row]), int(self._starts[row + 1])
        return row * self.context, (row + 1) * self.context + 1

    def _tokens(self, row: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """T + 1 tokens, and a mask that is false for padding."""
        own = self.split.read(*self._span(row))
        tokens = np.full(self.context + 1, self.split.corpus.index.end_id, np.int64)
        tokens[: len(own)] = own
        return tokens, np.arange(self.context + 1) < len(own)

    def _order(self, numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        epochs, within = np.divmod(numbers, self.sequences)
        if not self.shuffle:
            return within
        shuffled = np.empty_like(within)
        for epoch in np.unique(epochs).tolist():
            chosen = epochs == epoch
            shuffled[chosen] = permute(within[chosen], self.sequences, f"{self.seed} {epoch}")
        return shuffled


def _packed(split: Split, context: int) -> npt.NDArray[np.int64]:
    """First token of each sequence of whole documents, and the end of the last one."""
    ends = split.ends
    longest = int(np.diff(ends, prepend=0).max())
    if longest > context + 1:
        raise DataError(
            f"{split.name} has a document of {longest} tokens, but whole documents must fit in the context; "
            f"use a context of {longest - 1} or more, shorter documents, or rows of the stream"
        )
    starts = [0]
    while starts[-1] < ends[-1]:
        starts.append(int(ends[np.searchsorted(ends, starts[-1] + context + 1, side="right") - 1]))
    return np.array(starts)


def rows_of(step: int, batch_size: int, part: int, parts: int) -> range:
    """Positions in the endless order that one part of a step reads."""
    if step < 0:
        raise RangeError(f"steps are counted from 0, got {step}")
    if parts < 1 or batch_size % parts:
        raise RangeError(
            f"a batch of {batch_size} sequences cannot be divided into {parts} equal parts; change one of them"
        )
    if not 0 <= part < parts:
        raise RangeError(f"part must be from 0 to {parts - 1}, got {part}")
    share = batch_size // parts
    start = step * batch_size + part * share
    return range(start, start + share)
