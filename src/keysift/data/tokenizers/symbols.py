"""Tokenizer of generated tasks: a fixed list of words, separated by blanks.

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
from keysift.data.options import options
from keysift.data.tokenizers.base import MARKER, Ids, id_type
from keysift.data.tokenizers.decoder import Decoder, Utf8Decoder

MOST = 1024  # letters or values; a file that names more is invalid


class Symbols:
    """One token per word; the last id ends a text. `name` describes the list of words."""

    prefix_ids: tuple[int, ...] = ()

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
        """The answer to each query ("A?" after "A=3"), None at other tokens.

        Returns None if the vocabulary has no queries; the answer to a token is then the next token.
        """
        if not any(word.endswith("?") for word in self.words):
            return None
        values: dict[str, str] = {}
        answers: list[int | None] = []
        for token in ids:
            letter, is_pair, value = self.words[token].partition("=") if token < self.end_id else ("", "", "")
            if is_pair:
                values[letter] = value
            answer = values.get(letter.removesuffix("?")) if letter.endswith("?") else None
            answers.append(None if answer is None else self._ids[answer])
        return answers

    def encode_array(self, text: str) -> Ids:
        return np.array(self.encode(text), id_type(self.vocab_size))

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(self._bytes_of, ids)).decode()

    def decoder(self) -> Decoder:
        return Utf8Decoder(self._bytes_of)

    def _bytes_of(self, token: int) -> bytes:
        if not 0 <= token <= self.end_id:
            raise RangeError(f"{self.name} has ids 0 to {self.end_id}, got {token}; use the model's own tokenizer")
        return b"" if token == self.end_id else f" {self.words[token]}".encode()

    def save(self, directory: Path) -> None:
        (directory / MARKER).write_text(json.dumps({"tokenizer": self.name}) + "\n")


def of_recall(*, hops: int, letters: int, values: int) -> Symbols:
    """The symbols of recall. One hop: all pairs, queries and values. Two hops: all letters and values."""
    letter_names = [ascii_uppercase[at % 26] + (str(at // 26) if at >= 26 else "") for at in range(letters)]
    value_names = [str(at) for at in range(values)]
    words = [*letter_names, *value_names]
    if hops == 1:
        words = [
            *(f"{letter}={value}" for letter in letter_names for value in value_names),
            *(f"{n}?" for n in letter_names),
            *value_names,
        ]
    return Symbols(f"recall:hops={hops},letters={letters},values={values}", words)


def named(name: str) -> Symbols:
    """The symbols with a name that `of_recall` made."""
    sizes = options(name.removeprefix("recall:"))
    known = sorted(sizes) == ["hops", "letters", "values"] and all(type(value) is int for value in sizes.values())
    if not known or sizes["hops"] not in (1, 2) or not all(2 <= sizes[name] <= MOST for name in ("letters", "values")):
        raise DataError(
            f"the symbols of recall are named recall:hops=H,letters=L,values=V, up to {MOST} each, got {name!r}"
        )
    return of_recall(**sizes)
