"""The retrieval tasks by name, as rows of tokens and targets for one model's tokenizer."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from keysift.core.errors import DataError, RangeError
from keysift.data import abcdigits, mqar, passkey
from keysift.data.abcdigits import Question
from keysift.data.batches import IGNORE
from keysift.data.options import options
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
        """Every percent of depth has rows of its own: the same letters at another place would be no new question.
        Depths that round to the same percent share theirs."""
        held_out = replace(self.task, seed=self.task.seed + HELD_OUT)
        return held_out.row(101 * number + round(100 * depth), length=length, depth=depth)


HELD_OUT = 10**6  # added to the seed a model is trained with
LENGTHS = (512, 1024, 2048)
RATIOS = (1, 2, 4, 8, 16, 32, 64)


def find_task(name: str, found: TextModel, *, seed: int, trained_on: str = "") -> Task:
    """A task by its name, for one model; `trained_on` is the data of its run, where that is known."""
    kinds: dict[str, type[AbcDigits | Passkey | Mqar]] = {"abcdigits": AbcDigits, "passkey": Passkey, "mqar": Mqar}
    if name != "recall":
        return kinds[name](found.tokenizer, seed=seed)
    return RecallTask(recall_of(found.tokenizer, seed=seed, trained_on=trained_on))


def recall_of(tokenizer: Tokenizer, *, seed: int = 0, length: int | None = None, trained_on: str = "") -> Recall:
    """The task a model was trained on: its tokenizer names all but how many letters are asked, which its run tells."""
    if not isinstance(tokenizer, Symbols):
        raise DataError(
            f"recall is for models trained on it, and this one reads {tokenizer.name}; "
            f"train one with keysift train --data recall"
        )
    task = Recall.of(tokenizer, seed=seed)
    queries = options(trained_on.partition(":")[2]).get("queries", task.queries)
    # A row has whole pairs, and at least one for every letter asked.
    length = max(2 * task.hops * queries, (length or task.length) // task.hops * task.hops)
    return replace(task, queries=queries, length=length)


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
