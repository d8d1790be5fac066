"""MQAR, multi-query associative recall (Zoology, Arora et al., arXiv:2312.04927).

    k1 v1 k2 v2 ... | . . k2 . k1 . . .        num_kv_pairs pairs, then each key once more among fillers
    targets              v2   v1               -100 (no target) everywhere else

Keys come from the lower half of the vocabulary, values from the upper. Gaps before queries follow a power law.
Letters: B rows, T input_seq_len.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from keysift.core.config import config
from keysift.core.errors import RangeError
from keysift.data.batches import IGNORE
from keysift.data.documents import Document

Array = npt.NDArray[np.int64]


MOST_TOKENS = 2**24  # of a row and of the vocabulary, which are held in memory


@config
class Task:
    """A configuration of the task. A row depends on the seed and its number alone."""

    num_kv_pairs: int = 8
    input_seq_len: int = 64
    vocab_size: int = 8192
    power_a: float = 0.01
    """Exponent of the power law of the gaps; below 1, queries follow soon after the pairs."""
    random_non_queries: bool = True
    """Use random tokens as fillers; otherwise 0, which is never a key."""
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
        if max(self.vocab_size, self.input_seq_len) > MOST_TOKENS:
            raise RangeError(
                f"vocab_size and input_seq_len must be at most {MOST_TOKENS:,}, "
                f"got {self.vocab_size} and {self.input_seq_len}"
            )
        if self.seed < 0:
            raise RangeError(f"the seed of mqar must be at least 0, got {self.seed}")
        if self.power_a <= 0:
            raise RangeError(f"power_a must be above 0, got {self.power_a:g}")

    def row(self, number: int) -> tuple[Array, Array]:
        rng = np.random.default_rng([self.seed, number])
        pairs, half = self.num_kv_pairs, self.vocab_size // 2
        keys = 1 + rng.choice(half - 1, pairs, replace=False)
        values = half + rng.choice(self.vocab_size - half, pairs, replace=False)
        slots = (self.input_seq_len - 2 * pairs) // 2
        probability = np.arange(1, slots + 1) ** (self.power_a - 1)
        at = 2 * pairs + 2 * rng.choice(slots, pairs, replace=False, p=probability / probability.sum())
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
    """MQAR as text for any tokenizer. The number of pairs is drawn for each document."""

    documents: int = 20_000
    """Number of documents."""
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
        """A document: all pairs on one line, every key with its answer on the next."""
        drawn = np.random.default_rng([self.seed, number, 1]).integers(self.min_kv_pairs, self.max_kv_pairs + 1)
        tokens, targets = self._task(int(drawn)).row(number)
        pairs = tokens[: 2 * int(drawn)].reshape(-1, 2)
        queries = np.flatnonzero(targets != IGNORE)
        context = " ".join(f"{key}={value}" for key, value in pairs)
        answers = " ".join(f"{tokens[t]}={targets[t]}" for t in queries)
        return Document(f"mqar/{number}", f"{context}\n{answers}\n")


def examples(num_examples: int, task: Task | None = None, *, first: int = 0) -> tuple[Tensor, Tensor]:
    """Tokens and targets, both B T; rows `first`, `first` + 1, ... of the task."""
    if num_examples < 1:
        raise RangeError(f"mqar needs at least one example, got {num_examples}")
    rows = [(task or Task()).row(first + i) for i in range(num_examples)]
    tokens, targets = (np.stack(side) for side in zip(*rows, strict=True))
    return torch.from_numpy(tokens), torch.from_numpy(targets)
