"""The retrieval tasks by name, as rows of tokens and targets for one model's tokenizer."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from keysift.core.errors import DataError, RangeError
from keysift.data import abcdigits, mqar, passkey
from keysift.data.abcdigits import Question
from keysift.data.batches import IGNORE
from keysift.data.recall import Recall
from keysift.data.symbols import Symbols
from keysift.data.tokenizer import Tokenizer
from keysift.evaluate.retrieval import Task
from keysift.runs.text_model import TextModel

Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RecallTask:
    """Recall beyond its training length, on rows no training run has seen."""

    task: Recall
    name: str = "recall"

    @property
    def chance(self) -> float:
        return self.task.chance

    def row(self, number: int, *, length: int, depth: float) -> tuple[Array, Array]:
        return replace(self.task, seed=self.task.seed + HELD_OUT).row(number, length=length, depth=depth)


HELD_OUT = 10**6  # added to the seed a model is trained with


LENGTHS = (512, 1024, 2048)
RATIOS = (1, 2, 4, 8, 16, 32, 64)


def find_task(name: str, found: TextModel, *, seed: int) -> Task:
    """A task by its name, for one model."""
    kinds: dict[str, type[AbcDigits | Passkey | Mqar]] = {"abcdigits": AbcDigits, "passkey": Passkey, "mqar": Mqar}
    if name != "recall":
        return kinds[name](found.tokenizer, seed=seed)
    task = Recall.of(found.tokenizer, seed=seed) if isinstance(found.tokenizer, Symbols) else Recall(seed=seed)
    if task.vocab_size > found.model.config.vocab_size:
        raise DataError(f"recall has {task.vocab_size} tokens and this model knows {found.model.config.vocab_size}")
    return RecallTask(task)


def lengths_of(name: str, trained: int | None) -> tuple[int, ...]:
    """Lengths to ask where none are given: of recall, multiples of the training length."""
    return tuple(ratio * trained for ratio in RATIOS) if name == "recall" and trained is not None else LENGTHS


@dataclass(frozen=True)
class AbcDigits:
    """ABCDigits with as many lines as fit in the length; below its shortest text, fewer letters."""

    tokenizer: Tokenizer
    seed: int = 123
    name: str = "abcdigits"

    @property
    def chance(self) -> float:
        return 1 / 900_000

    def row(self, number: int, *, length: int, depth: float) -> tuple[Array, Array]:
        (text,) = abcdigits.texts_within(
            self.tokenizer, _room(self.tokenizer, length), depth, n=1, seed=self.seed * 10_007 + number
        )
        return _asked(self.tokenizer, abcdigits.question(text))


@dataclass(frozen=True)
class Passkey:
    tokenizer: Tokenizer
    seed: int = 0
    digits: int = 5
    name: str = "passkey"

    @property
    def chance(self) -> float:
        return 1 / (9 * float(10 ** (self.digits - 1)))

    def row(self, number: int, *, length: int, depth: float) -> tuple[Array, Array]:
        room = _room(self.tokenizer, length)
        asked = passkey.within(self.tokenizer, room, depth, digits=self.digits, seed=self.seed, number=number)
        return _asked(self.tokenizer, asked)


@dataclass(frozen=True)
class Mqar:
    """MQAR as the text models are trained on. A row asks one key; `depth` says which of the pairs it is."""

    tokenizer: Tokenizer
    seed: int = 0
    vocab_size: int = 8192
    name: str = "mqar"

    @property
    def chance(self) -> float:
        return 2 / self.vocab_size

    @cached_property
    def _tokens_of_a_pair(self) -> int:
        return len(self.tokenizer.encode_array("4095=8191 "))

    def row(self, number: int, *, length: int, depth: float) -> tuple[Array, Array]:
        pairs = (_room(self.tokenizer, length) - 2 * self._tokens_of_a_pair) // self._tokens_of_a_pair
        if pairs < 1:
            raise RangeError(f"an MQAR text of {length} tokens holds no pair; ask for a longer one")
        task = mqar.Task(
            num_kv_pairs=pairs, input_seq_len=4 * pairs, vocab_size=self.vocab_size, seed=self.seed + HELD_OUT
        )
        told = task.row(number)[0][: 2 * pairs].reshape(-1, 2)
        key, value = told[round(depth * (pairs - 1))]
        text = " ".join(f"{k}={v}" for k, v in told)
        return _asked(self.tokenizer, Question(f"{text}\n{key}=", str(value)))


def _room(tokenizer: Tokenizer, length: int) -> int:
    """What a text may fill, beside the tokens that every text begins with."""
    return length - len(tokenizer.begin)


def _asked(tokenizer: Tokenizer, question: Question) -> tuple[Array, Array]:
    """The whole text but its last token, and targets where the answer is to come."""
    texts = (question.prompt, question.prompt + question.answer)
    prompt, whole = ([*tokenizer.begin, *tokenizer.encode(text)] for text in texts)
    # A tokenizer may join the end of the prompt with the answer: what differs is the answer.
    same = next((i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(prompt))
    tokens = np.array(whole[:-1], np.int64)
    targets = np.full(len(tokens), IGNORE, np.int64)
    targets[same - 1 :] = whole[same:]
    return tokens, targets
