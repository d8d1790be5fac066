"""Retrieval tasks by name: rows of tokens and targets, encoded with the tokenizer of the model."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from keysift.core.errors import DataError, RangeError
from keysift.data.batches import IGNORE
from keysift.data.options import options
from keysift.data.tasks import abcdigits, mqar, passkey
from keysift.data.tasks.abcdigits import Question
from keysift.data.tasks.recall import Recall
from keysift.data.tokenizers.base import Tokenizer
from keysift.data.tokenizers.symbols import Symbols

Array = npt.NDArray[np.int64]
TEST_SEED_OFFSET = 10**6  # added to a seed, so that test rows differ from the training rows of the same seed
LENGTHS = (512, 1024, 2048)
RATIOS = (1, 2, 4, 8, 16, 32, 64)


class Task(Protocol):
    """A source of rows. `row` is a pure function of its arguments, so that a grid can resume at any cell."""

    @property
    def name(self) -> str: ...
    @property
    def chance(self) -> float: ...
    def row(self, number: int, *, length: int, depth: float) -> tuple[Array, Array]: ...


@dataclass(frozen=True)
class RecallTask:
    """Recall at any length, on rows that no training run has seen."""

    task: Recall
    name: str = "recall"

    @property
    def chance(self) -> float:
        return self.task.chance

    def row(self, number: int, *, length: int, depth: float) -> tuple[Array, Array]:
        """Rows differ between depths, because moving a needle in the same row would not be a new question.

        Depths that round to the same percent share their rows.
        """
        test = replace(self.task, seed=self.task.seed + TEST_SEED_OFFSET)
        return test.row(101 * number + round(100 * depth), length=length, depth=depth)


def find_task(name: str, tokenizer: Tokenizer, *, seed: int, trained_on: str = "") -> Task:
    """The task of this name. `trained_on` is the data source of the model's run, if known."""
    kinds: dict[str, type[AbcDigits | Passkey | Mqar]] = {"abcdigits": AbcDigits, "passkey": Passkey, "mqar": Mqar}
    if name != "recall":
        return kinds[name](tokenizer, seed=seed)
    return RecallTask(recall_task(tokenizer, seed=seed, trained_on=trained_on))


def recall_task(tokenizer: Tokenizer, *, seed: int = 0, length: int | None = None, trained_on: str = "") -> Recall:
    """The recall task a model was trained on.

    The tokenizer gives the task, except the number of queries per row: that is read from `trained_on`.
    """
    if not isinstance(tokenizer, Symbols):
        raise DataError(
            f"recall needs a model trained on it, but this model uses the tokenizer {tokenizer.name}; "
            f"train one with keysift train --data recall"
        )
    task = Recall.of(tokenizer, seed=seed)
    queries = options(trained_on.partition(":")[2]).get("queries", task.queries)
    # A row holds complete pairs, at least one for every query.
    length = max(2 * task.hops * queries, (length or task.length) // task.hops * task.hops)
    return replace(task, queries=queries, length=length)


def default_lengths(name: str, trained: int | None) -> tuple[int, ...]:
    """Lengths to measure by default: multiples of the training length for recall, LENGTHS for other tasks."""
    return tuple(ratio * trained for ratio in RATIOS) if name == "recall" and trained is not None else LENGTHS


@dataclass(frozen=True)
class AbcDigits:
    """ABCDigits with as many lines as fit in the length, and fewer letters if its shortest text does not fit."""

    tokenizer: Tokenizer
    seed: int = 123
    name: str = "abcdigits"

    @property
    def chance(self) -> float:
        return 1 / 900_000

    def row(self, number: int, *, length: int, depth: float) -> tuple[Array, Array]:
        (text,) = abcdigits.texts_within(
            self.tokenizer, _text_tokens(self.tokenizer, length), depth, n=1, seed=self.seed * 10_007 + number
        )
        return _encode(self.tokenizer, abcdigits.question(text))


@dataclass(frozen=True)
class Passkey:
    """A passkey in filler text, queried at the end."""

    tokenizer: Tokenizer
    seed: int = 0
    digits: int = 5
    name: str = "passkey"

    @property
    def chance(self) -> float:
        return 1 / (9 * float(10 ** (self.digits - 1)))

    def row(self, number: int, *, length: int, depth: float) -> tuple[Array, Array]:
        budget = _text_tokens(self.tokenizer, length)
        question = passkey.within(self.tokenizer, budget, depth, digits=self.digits, seed=self.seed, number=number)
        return _encode(self.tokenizer, question)


@dataclass(frozen=True)
class Mqar:
    """MQAR as text, the form text models are trained on. A row asks for one key; `depth` selects its pair."""

    tokenizer: Tokenizer
    seed: int = 0
    vocab_size: int = 8192
    name: str = "mqar"

    @property
    def chance(self) -> float:
        return 2 / self.vocab_size

    @cached_property
    def _pair_tokens(self) -> int:
        return len(self.tokenizer.encode_array("4095=8191 "))

    def row(self, number: int, *, length: int, depth: float) -> tuple[Array, Array]:
        pairs = (_text_tokens(self.tokenizer, length) - 2 * self._pair_tokens) // self._pair_tokens
        if pairs < 1:
            raise RangeError(f"an MQAR text of {length} tokens has room for no pair; use a longer length")
        task = mqar.Task(
            num_kv_pairs=pairs, input_seq_len=4 * pairs, vocab_size=self.vocab_size, seed=self.seed + TEST_SEED_OFFSET
        )
        stored = task.row(number)[0][: 2 * pairs].reshape(-1, 2)
        key, value = stored[round(depth * (pairs - 1))]
        text = " ".join(f"{k}={v}" for k, v in stored)
        return _encode(self.tokenizer, Question(f"{text}\n{key}=", str(value)))


def _text_tokens(tokenizer: Tokenizer, length: int) -> int:
    """Tokens left for the text after those that every text begins with."""
    return length - len(tokenizer.prefix_ids)


def _encode(tokenizer: Tokenizer, question: Question) -> tuple[Array, Array]:
    """The tokens of prompt and answer without the last, and the answer as targets."""
    texts = (question.prompt, question.prompt + question.answer)
    prompt, whole = ([*tokenizer.prefix_ids, *tokenizer.encode(text)] for text in texts)
    # A tokenizer may merge the end of the prompt with the answer: the answer starts where the tokens differ.
    same = next((i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(prompt))
    tokens = np.array(whole[:-1], np.int64)
    targets = np.full(len(tokens), IGNORE, np.int64)
    targets[same - 1 :] = whole[same:]
    return tokens, targets
