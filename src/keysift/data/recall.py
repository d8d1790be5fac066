"""Recall, the smallest tasks that ask for a key seen once among keys seen often. They are learned in minutes.

one hop    a b a c ... | ?a ?b       a token is a (letter, value) pair, a query token names a letter
two hops   A 3 B 1 A 3 ... | A 3 B 1       letter and value are two tokens, so the token before must be carried along

    Recall(hops=2, letters=8, values=8, length=32)
    --data recall:hops=2,letters=26,values=16,start_letters=6        the length is --context, the seed --seed

Each document fixes the value of every letter. Needles stand once, the other letters often (weights 1, 1/2, 1/3, ...).
At the end some letters are asked, half of them needles; the value is predicted there and nowhere else.

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
from keysift.data.symbols import MOST, Symbols, of_recall

Array = npt.NDArray[np.int64]
HELD_OUT = 2**40


@config
class Recall:
    """One setting of the task. A row depends on the seed, its number and the arguments of `row` alone."""

    hops: Literal[1, 2] = 1
    letters: int = 32
    values: int = 16
    length: int = 64
    """Tokens of a row, queries included."""
    queries: int = 8
    """Letters asked at the end; every other one is a needle."""
    seed: int = 0
    start_letters: int | None = None
    """A curriculum: stage n of training uses the first start_letters + n letters; all of them if left out."""

    def __post_init__(self) -> None:
        if not (2 <= self.letters <= MOST and 2 <= self.values <= MOST):
            raise RangeError(f"recall has 2 to {MOST} letters and values, got {self.letters} and {self.values}")
        if not 1 <= self.queries <= self.letters:
            raise RangeError(f"recall asks between 1 and all {self.letters} letters, got queries={self.queries}")
        if self.start_letters is not None and not max(2, self.queries) <= self.start_letters <= self.letters:
            raise RangeError(
                f"start_letters lies between the letters asked ({max(2, self.queries)}) and all {self.letters}, "
                f"got {self.start_letters}"
            )
        self._pairs(self.length)

    @classmethod
    def of(cls, tokenizer: Symbols, *, seed: int = 0) -> Self:
        """The task whose symbols these are, with as many queries as it can have, eight at most."""
        told = options(tokenizer.name.removeprefix("recall:"))
        return cls(**told, queries=min(8, told["letters"]), seed=seed)

    @property
    def stages(self) -> int:
        """Of the curriculum; the last one has every letter."""
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
        """One word for each token, in the order of their ids."""
        return of_recall(hops=self.hops, letters=self.letters, values=self.values)

    @property
    def chance(self) -> float:
        """Accuracy of a guess."""
        return 1 / self.values

    def _pairs(self, length: int) -> int:
        """Pairs before the queries in a row of so many tokens."""
        pairs = length // self.hops - self.queries
        if length % self.hops or pairs < self.queries:
            raise RangeError(
                f"a row of {self.hops}-hop recall has {self.hops} token(s) for each pair and query, and holds every "
                f"letter it asks: at least {2 * self.hops * self.queries} tokens in steps of {self.hops}, got {length}"
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
        """Tokens and targets, T each, of a stage of the curriculum or of the whole task. With `depth` one needle stands
        there (0 the start, 1 the last pair before the queries), and only it has a target: one cell of a retrieval grid.
        With `needles_only` the needles stand anywhere, and no other letter has a target.
        """
        if depth is not None and not 0 <= depth <= 1:
            raise RangeError(f"depth is a share of the context, from 0 to 1, got {depth:g}")
        rng = np.random.default_rng([self.seed, number])
        pairs = self._pairs(length or self.length)
        names = rng.permutation(self.letters if stage is None else self.letters + 1 - self.stages + stage)
        needles, others = names[: self.needles], names[self.needles :]
        often = 1 / np.arange(1, len(others) + 1)
        context = rng.choice(others, pairs - len(needles), p=often / often.sum())
        # Asked letters that are no needles stand at least once.
        asked_often = others[: self.queries - len(needles)]
        context[rng.permutation(len(context))[: len(asked_often)]] = asked_often
        context = np.insert(context, np.sort(rng.integers(0, len(context) + 1, len(needles))), rng.permutation(needles))
        if depth is not None:
            context = np.delete(context, np.flatnonzero(context == needles[0]))
            context = np.insert(context, round(depth * len(context)), needles[0])
        asked = rng.permutation(np.concatenate([needles, asked_often]))
        value_of = rng.integers(self.values, size=self.letters)
        if depth is not None:
            wanted = asked == needles[0]
        else:
            wanted = np.isin(asked, needles) if needles_only else np.ones(len(asked), bool)
        return self._spell(context, asked, value_of, wanted)

    def _spell(
        self, context: Array, asked: Array, value_of: Array, wanted: npt.NDArray[np.bool_]
    ) -> tuple[Array, Array]:
        if self.hops == 1:
            query, value = self.letters * self.values, self.letters * self.values + self.letters
            tokens = np.concatenate([context * self.values + value_of[context], query + asked])
            at, answers = np.arange(len(context), len(tokens)), value + value_of[asked]
        else:
            told = np.concatenate([context, asked])
            tokens = np.stack([told, self.letters + value_of[told]], axis=1).ravel()
            at, answers = 2 * np.arange(len(context), len(told)), self.letters + value_of[asked]
        targets = np.full(len(tokens), IGNORE, np.int64)
        targets[at[wanted]] = answers[wanted]
        return tokens.astype(np.int64), targets


class Batches:
    """Batches of a task, with the interface of `keysift.data.Batches`: one integer resumes them.

    stage   of the curriculum; None is the whole task
    first   number of the first row; rows from HELD_OUT on are never trained on
    """

    sequences = HELD_OUT
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
        """Equal for two runs that read the same rows, as long as they were at the same stages."""
        return hashlib.sha256(json.dumps(["recall", to_dict(self.task), self._first]).encode()).hexdigest()

    def batch(self, step: int, part: int = 0, parts: int = 1) -> Batch:
        rows = rows_of(step, self.batch_size, part, parts)
        made = [self.task.row(self._first + number, stage=self.stage) for number in rows]
        inputs, targets = (torch.from_numpy(np.stack(side)) for side in zip(*made, strict=True))
        return Batch(inputs=inputs, targets=targets, rows=tuple(rows), answers=True)
