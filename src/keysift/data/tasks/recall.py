"""Recall: a minimal retrieval task, learned in minutes. Find a key that occurs once among keys that occur often.

one hop    a b a c ... | ?a ?b       a token is a (letter, value) pair, a query token names a letter
two hops   A 3 B 1 A 3 ... | A 3 B 1       letter and value are two tokens, which takes two attention layers

    Recall(hops=2, letters=8, values=8, length=32)
    --data recall:hops=2,letters=26,values=16,start_letters=6        the length is --context, the seed --seed

Each row assigns a value to every letter. Needles occur once, other letters often (weights 1, 1/2, 1/3, ...). The row
ends with queries, half of them for needles. Only their answers are targets.

As text: "A=3 B=1 A=3 A? B?" and the answers "3", "1"; with two hops "A 3 B 1 A 3 A 3 B 1".

Letters: B rows, T tokens of a row.
"""

import hashlib
import json
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
import torch

from keysift.core.config import config, to_dict
from keysift.core.errors import RangeError
from keysift.data.batches import IGNORE, Batch, rows_of
from keysift.data.options import options
from keysift.data.tokenizers.symbols import MOST, Symbols, of_recall

Array = npt.NDArray[np.int64]
FIRST_VALIDATION_ROW = 2**40  # rows from this number on are never trained on


@config
class Recall:
    """A configuration of the task. A row depends on the seed, its number and the arguments of `row` alone."""

    hops: Literal[1, 2] = 1
    letters: int = 32
    values: int = 16
    length: int = 64
    """Tokens per row, including the queries."""
    queries: int = 8
    """Queries at the end; every other one is for a needle."""
    seed: int = 0
    start_letters: int | None = None
    """Curriculum: stage n of training uses start_letters + n letters; without it, all letters from the start."""

    def __post_init__(self) -> None:
        if not (2 <= self.letters <= MOST and 2 <= self.values <= MOST):
            raise RangeError(f"recall has 2 to {MOST} letters and values, got {self.letters} and {self.values}")
        if not 1 <= self.queries <= self.letters:
            raise RangeError(f"queries must be between 1 and the number of letters, {self.letters}, got {self.queries}")
        if self.start_letters is not None and not max(2, self.queries) <= self.start_letters <= self.letters:
            raise RangeError(
                f"start_letters must be between the number of queried letters ({max(2, self.queries)}) and all "
                f"{self.letters}, got {self.start_letters}"
            )
        self._pairs(self.length)

    @classmethod
    def of(cls, tokenizer: Symbols, *, seed: int = 0) -> Self:
        """The task of a tokenizer, with eight queries or as many as it has letters."""
        sizes = options(tokenizer.name.removeprefix("recall:"))
        return cls(**sizes, queries=min(8, sizes["letters"]), seed=seed)

    @property
    def stages(self) -> int:
        """Number of stages of the curriculum; the last one uses all letters."""
        return 1 + self.letters - (self.letters if self.start_letters is None else self.start_letters)

    @property
    def needles(self) -> int:
        return (self.queries + 1) // 2

    @property
    def vocab_size(self) -> int:
        if self.hops == 1:
            return self.letters * self.values + self.letters + self.values
        return self.letters + self.values

    @property
    def tokenizer(self) -> Symbols:
        """A tokenizer with one word per token."""
        return of_recall(hops=self.hops, letters=self.letters, values=self.values)

    @property
    def chance(self) -> float:
        """Accuracy of random guessing."""
        return 1 / self.values

    def _pairs(self, length: int) -> int:
        """Number of pairs before the queries in a row of `length` tokens."""
        pairs = length // self.hops - self.queries
        if length % self.hops or pairs < self.queries:
            raise RangeError(
                f"a row of {self.hops}-hop recall with {self.queries} queries needs at least "
                f"{2 * self.hops * self.queries} tokens, a multiple of {self.hops}, got {length}"
            )
        return pairs

    def row(
        self,
        number: int,
        *,
        length: int | None = None,
        depth: float | None = None,
        stage: int | None = None,
        needles_only: bool = False,
    ) -> tuple[Array, Array]:
        """Tokens and targets of a row, T each, of a stage of the curriculum or of the whole task.

        depth          place one needle there (0 the start, 1 the last pair before the queries) and make it the only
                       target: one cell of a retrieval grid
        needles_only   only needles have targets
        """
        if depth is not None and not 0 <= depth <= 1:
            raise RangeError(f"depth is a fraction of the context, from 0 to 1, got {depth:g}")
        rng = np.random.default_rng([self.seed, number])
        pairs = self._pairs(length or self.length)
        names = rng.permutation(self.letters if stage is None else self.letters + 1 - self.stages + stage)
        needles, others = names[: self.needles], names[self.needles :]
        weights = 1 / np.arange(1, len(others) + 1)
        context = rng.choice(others, pairs - len(needles), p=weights / weights.sum())
        # Letters that are queried but are not needles occur at least once.
        queried_others = others[: self.queries - len(needles)]
        context[rng.permutation(len(context))[: len(queried_others)]] = queried_others
        context = np.insert(context, np.sort(rng.integers(0, len(context) + 1, len(needles))), rng.permutation(needles))
        if depth is not None:
            context = np.delete(context, np.flatnonzero(context == needles[0]))
            context = np.insert(context, round(depth * len(context)), needles[0])
        queried = rng.permutation(np.concatenate([needles, queried_others]))
        value_of = rng.integers(self.values, size=self.letters)
        if depth is not None:
            is_target = queried == needles[0]
        else:
            is_target = np.isin(queried, needles) if needles_only else np.ones(len(queried), bool)
        return self._spell(context, queried, value_of, is_target)

    def _spell(
        self, context: Array, queried: Array, value_of: Array, is_target: npt.NDArray[np.bool_]
    ) -> tuple[Array, Array]:
        if self.hops == 1:
            query, value = self.letters * self.values, self.letters * self.values + self.letters
            tokens = np.concatenate([context * self.values + value_of[context], query + queried])
            at, answers = np.arange(len(context), len(tokens)), value + value_of[queried]
        else:
            letters = np.concatenate([context, queried])
            tokens = np.stack([letters, self.letters + value_of[letters]], axis=1).ravel()
            at, answers = 2 * np.arange(len(context), len(letters)), self.letters + value_of[queried]
        targets = np.full(len(tokens), IGNORE, np.int64)
        targets[at[is_target]] = answers[is_target]
        return tokens.astype(np.int64), targets


class Batches:
    """Batches of a task by step number, with the interface of `keysift.data.Batches`.

    stage   stage of the curriculum; None is the whole task
    first   number of the first row; rows from FIRST_VALIDATION_ROW on are never trained on
    """

    sequences = FIRST_VALIDATION_ROW
    tokens = bytes_per_token = None

    def __init__(self, task: Recall, *, batch_size: int, first: int = 0, stage: int | None = None) -> None:
        self.task = task
        self.stage = stage
        self.batch_size = batch_size
        self.context = task.length
        self.vocab_size = task.vocab_size
        self._first = first

    @property
    def stream_hash(self) -> str:
        """Hash of the task; runs with the same hash read the same rows at the same stages."""
        return hashlib.sha256(json.dumps(["recall", to_dict(self.task), self._first]).encode()).hexdigest()

    def batch(self, step: int, part: int = 0, parts: int = 1) -> Batch:
        rows = rows_of(step, self.batch_size, part, parts)
        examples = [self.task.row(self._first + number, stage=self.stage) for number in rows]
        inputs, targets = (torch.from_numpy(np.stack(side)) for side in zip(*examples, strict=True))
        return Batch(inputs=inputs, targets=targets, rows=tuple(rows), answers=True)
