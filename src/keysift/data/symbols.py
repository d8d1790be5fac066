"""A tokenizer for generated tasks: a fixed list of words, each written with a blank before it.

Symbols("recall:hops=2,letters=2,values=2", ("A", "B", "0", "1")).encode("A 1 B 0") == [0, 3, 1, 2]
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keysift.core.errors import DataError, RangeError
from keysift.core.registry import nearest
from keysift.data.decoder import Decoder, Utf8Decoder
from keysift.data.tokenizer import MARKER, Ids, id_type


class Symbols:
    """Every word is a token; the id after the last one ends a text. `name` says how to make the list again."""

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
