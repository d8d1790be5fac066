"""Batches in a shuffled order that one integer resumes.

Sequence i of a split is its tokens [iT, iT + T], the last one being only a target; or, of whole documents, as many
from one on as fit in T + 1 tokens, the rest padding without targets. Step n of training reads the
sequences number nB, ..., nB + B - 1 of an endless order: one permutation of all sequences for each epoch. Nothing is
carried from step to step, so a run resumed at step n reads what it would have read.

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

IGNORE = -100  # what torch's cross_entropy leaves out of the loss


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Inputs and targets, B T in int64; a target is -100 where nothing is to be predicted.

    With isolation, `positions` count from the start of each document, and no document sees another.
    """

    inputs: Tensor
    targets: Tensor
    rows: tuple[int, ...]  # numbers of the sequences in the split, to name a batch in a diagnosis
    positions: Positions | None = None
    answers: bool = False  # targets are answers to questions, so the share predicted exactly means something

    def to(self, device: torch.device | str) -> Self:
        inputs, targets = self.inputs.to(device, non_blocking=True), self.targets.to(device, non_blocking=True)
        positions = None if self.positions is None else self.positions.to(device)
        return replace(self, inputs=inputs, targets=targets, positions=positions)


class Batches:
    """`batch(step)` of a split.

    isolate   keep the documents of a sequence apart
    whole     cut no document: a sequence begins with one and holds as many as fit
    shuffle   False reads in order
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
                f"use a smaller context, more text or another validation share"
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
        """Equal for two runs that read the same tokens in the same order with the same targets."""
        told = [self.split.hash, self.context, self.seed if self.shuffle else None, self.isolate, self.whole]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()

    @property
    def tokens(self) -> int:
        return self.split.tokens

    @property
    def bytes_per_token(self) -> float:
        return self.split.bytes_per_token

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
        names = tuple(rows.tolist())
        pieces = [self._tokens(row) for row in names]
        tokens, real = (np.stack(part) for part in zip(*pieces, strict=True))
        inputs, targets = torch.from_numpy(tokens[:, :-1].copy()), torch.from_numpy(tokens[:, 1:].copy())
        targets[torch.from_numpy(~real[:, 1:])] = IGNORE
        if not self.isolate:
            return Batch(inputs=inputs, targets=targets, rows=names)
        lengths = []
        for number, row in enumerate(names):
            begins = self.split.begins(*self._stretch(row))
            # The first token of a document cannot be told from the end of another.
            targets[number, begins[begins > 0] - 1] = IGNORE
            held = min(self.context, int(real[number].sum()))
            lengths.append(np.diff(np.append(begins[begins < held], held)).tolist())
        positions = Positions.packed(lengths, self.context)
        return Batch(inputs=inputs, targets=targets, rows=names, positions=positions)

    def _stretch(self, row: int) -> tuple[int, int]:
        """The tokens of a sequence, its last target included."""
        if self._starts is not None:
            return int(self._starts[row]), int(self._starts[row + 1])
        return row * self.context, (row + 1) * self.context + 1

    def _tokens(self, row: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """T + 1 tokens, and which of them are not padding."""
        held = self.split.read(*self._stretch(row))
        tokens = np.full(self.context + 1, self.split.corpus.index.end_id, np.int64)
        tokens[: len(held)] = held
        return tokens, np.arange(self.context + 1) < len(held)

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
    """Where sequences of whole documents begin, and where the last one ends."""
    ends = split.ends
    longest = int(np.diff(ends, prepend=0).max())
    if longest > context + 1:
        raise DataError(
            f"{split.name} has a document of {longest} tokens, and whole documents must fit in a context; "
            f"use a context of {longest - 1} or more, shorter documents, or rows of the stream"
        )
    starts = [0]
    while starts[-1] < ends[-1]:
        starts.append(int(ends[np.searchsorted(ends, starts[-1] + context + 1, side="right") - 1]))
    return np.array(starts)


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
