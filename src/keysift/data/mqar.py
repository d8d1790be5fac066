"""MQAR, multi-query associative recall (Zoology, Arora et al., arXiv:2312.04927).

    k1 v1 k2 v2 ... | . . k2 . k1 . . .        num_kv_pairs pairs, then each key once more among fillers
    targets              v2   v1               -100 (no target) everywhere else

Keys come from the lower half of the vocabulary, values from the upper. The gap before a query follows a power law.
Letters: B rows, T input_seq_len.
"""

import hashlib
import json

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from keysift.core.config import config, to_dict
from keysift.core.errors import RangeError
from keysift.data.batches import IGNORE, Batch, rows_of
from keysift.data.sources import Document

Array = npt.NDArray[np.int64]


@config
class Task:
    """One setting of the task. A row depends on the seed and its number alone."""

    num_kv_pairs: int = 8
    input_seq_len: int = 64
    vocab_size: int = 8192
    power_a: float = 0.01
    """Exponent of the law of the gaps; below 1, queries come soon after the pairs."""
    random_non_queries: bool = True
    """Fill with random tokens; otherwise with 0, which is never a key."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_kv_pairs < 1 or 4 * self.num_kv_pairs > self.input_seq_len:
            raise RangeError(
                f"pairs and queries take 4 tokens each, so input_seq_len must be at least 4 * num_kv_pairs, "
                f"got {self.input_seq_len} and {self.num_kv_pairs}"
            )
        if self.vocab_size // 2 <= self.num_kv_pairs:
            raise RangeError(
                f"keys come from the lower half of the vocabulary, so vocab_size must exceed 2 * num_kv_pairs + 1, "
                f"got {self.vocab_size} and {self.num_kv_pairs}"
            )
        if self.power_a <= 0:
            raise RangeError(f"power_a must be above 0, got {self.power_a:g}")

    def row(self, number: int) -> tuple[Array, Array]:
        rng = np.random.default_rng([self.seed, number])
        pairs, half = self.num_kv_pairs, self.vocab_size // 2
        keys = 1 + rng.choice(half - 1, pairs, replace=False)
        values = half + rng.choice(self.vocab_size - half, pairs, replace=False)
        slots = (self.input_seq_len - 2 * pairs) // 2
        likely = np.arange(1, slots + 1) ** (self.power_a - 1)
        at = 2 * pairs + 2 * rng.choice(slots, pairs, replace=False, p=likely / likely.sum())
        tokens = np.zeros(self.input_seq_len, np.int64)
        if self.random_non_queries:
            tokens[:] = rng.integers(self.vocab_size, size=self.input_seq_len)
        tokens[0 : 2 * pairs : 2], tokens[1 : 2 * pairs : 2] = keys, values
        tokens[at] = keys
        targets = np.full(self.input_seq_len, IGNORE, np.int64)
        targets[at] = values
        return tokens, targets


@config
class Curriculum:
    """MQAR as training text any tokenizer can read: the number of pairs is drawn anew for each document."""

    documents: int = 20_000
    """How many documents."""
    min_kv_pairs: int = 2
    max_kv_pairs: int = 8
    vocab_size: int = 8192
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.min_kv_pairs <= self.max_kv_pairs:
            raise RangeError(
                f"mqar needs 1 <= min_kv_pairs <= max_kv_pairs, got {self.min_kv_pairs} and {self.max_kv_pairs}"
            )
        if self.documents < 1:
            raise RangeError(f"mqar needs at least one document, got {self.documents}")
        self._task(self.max_kv_pairs)

    def _task(self, pairs: int) -> Task:
        return Task(num_kv_pairs=pairs, input_seq_len=4 * pairs, vocab_size=self.vocab_size, seed=self.seed)

    def document(self, number: int) -> Document:
        """All pairs on one line, every key asked and answered on the next; depends on the seed and the number alone."""
        drawn = np.random.default_rng([self.seed, number, 1]).integers(self.min_kv_pairs, self.max_kv_pairs + 1)
        tokens, targets = self._task(int(drawn)).row(number)
        pairs = tokens[: 2 * int(drawn)].reshape(-1, 2)
        asked = np.flatnonzero(targets != IGNORE)
        told = " ".join(f"{key}={value}" for key, value in pairs)
        answers = " ".join(f"{tokens[t]}={targets[t]}" for t in asked)
        return Document(f"mqar/{number}", f"{told}\n{answers}\n")


def examples(num_examples: int, task: Task | None = None, *, first: int = 0) -> tuple[Tensor, Tensor]:
    """Tokens and targets, both B T; rows `first`, `first` + 1, ... of the task."""
    if num_examples < 1:
        raise RangeError(f"mqar needs at least one example, got {num_examples}")
    rows = [(task or Task()).row(first + i) for i in range(num_examples)]
    tokens, targets = (np.stack(side) for side in zip(*rows, strict=True))
    return torch.from_numpy(tokens), torch.from_numpy(targets)


class Batches:
    """Endless batches of a task, with the interface of `keysift.data.Batches`: one integer resumes them."""

    def __init__(self, task: Task, *, batch_size: int) -> None:
        self.task = task
        self.batch_size = batch_size
        self.context = task.input_seq_len
        self.vocab_size = task.vocab_size

    @property
    def stream_hash(self) -> str:
        return hashlib.sha256(json.dumps(["mqar", to_dict(self.task)]).encode()).hexdigest()

    def batch(self, step: int, part: int = 0, parts: int = 1) -> Batch:
        rows = rows_of(step, self.batch_size, part, parts)
        inputs, targets = examples(len(rows), self.task, first=rows.start)
        return Batch(inputs=inputs, targets=targets, rows=tuple(rows))
