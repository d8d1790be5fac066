"""A tokenizer for generated tasks: a fixed list of words, each written with a blank before it.

Symbols("recall:hops=2,letters=2,values=2", ("A", "B", "0", "1")).encode("A 1 B 0") == [0, 3, 1, 2]
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from string import ascii_uppercase

import numpy as np

from keysift.core.errors import DataError, RangeError
from keysift.core.registry import nearest
from keysift.data.decoder import Decoder, Utf8Decoder
from keysift.data.options import options
from keysift.data.tokenizer import MARKER, Ids, id_type

MOST = 1024  # letters or values: a file that asks for more is not one of ours


class Symbols:
    """Every word is a token; the id after the last one ends a text. `name` says how to make the list again."""

    begin: tuple[int, ...] = ()

    def __init__(self, name: str, words: Sequence[str]) -> None:
        self.name = name
        self.words = tuple(words)
        self._ids = {word: at for at, word in enumerate(self.words)}

    @property
    def vocab_size(self) -> int:
        return len(self.words) + 1

    @property
    def end_id(self) -> int:
        return len(self.words)

    @property
    def hash(self) -> str:
        return hashlib.sha256(json.dumps(["keysift symbols", self.words]).encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        for word in text.split():
            if word not in self._ids:
                raise DataError(
                    f"{word!r} is not a word of {self.name}; {nearest(word, list(self.words))}"
                    f"its words are {self.words[0]} to {self.words[-1]}, with blanks between them"
                )
        return [self._ids[word] for word in text.split()]

    def answers(self, ids: Sequence[int]) -> list[int | None] | None:
        """For words that ask ("A?" after "A=3"): the value each of them asks for, None at all other places. None as a
        whole where no word of the list asks, so that every token is answered by the next one."""
        if not any(word.endswith("?") for word in self.words):
            return None
        told: dict[str, str] = {}
        found: list[int | None] = []
        for token in ids:
            letter, is_pair, value = self.words[token].partition("=") if token < self.end_id else ("", "", "")
            if is_pair:
                told[letter] = value
            asked = told.get(letter.removesuffix("?")) if letter.endswith("?") else None
            found.append(None if asked is None else self._ids[asked])
        return found

    def encode_array(self, text: str) -> Ids:
        return np.array(self.encode(text), id_type(self.vocab_size))

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(self._spelled, ids)).decode()

    def decoder(self) -> Decoder:
        return Utf8Decoder(self._spelled)

    def _spelled(self, token: int) -> bytes:
        if not 0 <= token <= self.end_id:
            raise RangeError(f"{self.name} has ids 0 to {self.end_id}, got {token}; use the model's own tokenizer")
        return b"" if token == self.end_id else f" {self.words[token]}".encode()

    def save(self, directory: Path) -> None:
        (directory / MARKER).write_text(json.dumps({"tokenizer": self.name}) + "\n")


def of_recall(*, hops: int, letters: int, values: int) -> Symbols:
    """One hop: every pair, every query, every value. Two hops: every letter, every value."""
    named = [ascii_uppercase[at % 26] + (str(at // 26) if at >= 26 else "") for at in range(letters)]
    counted = [str(at) for at in range(values)]
    words = [*named, *counted]
    if hops == 1:
        words = [*(f"{letter}={value}" for letter in named for value in counted), *(f"{n}?" for n in named), *counted]
    return Symbols(f"recall:hops={hops},letters={letters},values={values}", words)


def named(name: str) -> Symbols:
    """From the name `of_recall` gave it."""
    told = options(name.removeprefix("recall:"))
    known = sorted(told) == ["hops", "letters", "values"] and all(type(value) is int for value in told.values())
    if not known or told["hops"] not in (1, 2) or not all(2 <= told[size] <= MOST for size in ("letters", "values")):
        raise DataError(
            f"the symbols of recall are named recall:hops=H,letters=L,values=V, up to {MOST} each, got {name!r}"
        )
    return of_recall(**told)
