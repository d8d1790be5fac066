"""Tokens to text one by one, at the same cost for the millionth as for the first.

What `add` and `end` give, put together, is what the tokenizer's `decode` gives for all tokens at once.
"""

import codecs
from collections.abc import Callable, Collection
from functools import cache
from typing import Protocol

HALF = "\N{REPLACEMENT CHARACTER}"
_LONGEST = 8  # tokens


class Decoder(Protocol):
    def add(self, token: int) -> str:
        """The characters this token completes."""
        ...

    def end(self) -> str:
        """What is left of a character that will not be completed."""
        ...


class Utf8Decoder:
    """For tokens that are pieces of UTF-8: a character may begin in one and end in another."""

    def __init__(self, spelled: Callable[[int], bytes]) -> None:
        self._spelled = spelled
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token: int) -> str:
        return self._characters.decode(self._spelled(token))

    def end(self) -> str:
        return self._characters.decode(b"", final=True)


class WindowDecoder:
    """For any other tokenizer: the last tokens are decoded with and without the new one, and the difference is new.

    `silent` tokens have no text. A token that ends in half a character is held back, eight at most: a tokenizer that
    spells unknown characters byte by byte needs four.
    """

    def __init__(self, decode: Callable[[list[int]], str], silent: Collection[int]) -> None:
        self._decode = decode
        self._silent = silent
        self._ids: list[int] = []
        self._known = 0  # of them, how many were given already

    def add(self, token: int) -> str:
        if token in self._silent:
            return ""
        self._ids.append(token)
        text = self._decode(self._ids)
        if text.endswith(HALF) and len(self._ids) - self._known < _LONGEST:
            return ""
        return self._give(text)

    def end(self) -> str:
        return self._give(self._decode(self._ids)) if len(self._ids) > self._known else ""

    def _give(self, text: str) -> str:
        new = text[len(self._decode(self._ids[: self._known])) :]
        # The tokens given last stay, because a word is spelled with its blank only behind another.
        self._ids = self._ids[self._known :]
        self._known = len(self._ids)
        return new


@cache
def byte_letters() -> dict[str, int]:
    """The letters byte-level BPE writes bytes as: printable Latin-1 for itself, the other 68 from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + at): byte for at, byte in enumerate(moved)}


def spelled_in_letters(token: str) -> bytes:
    """The bytes of a byte-level token; one that was added as plain text stands for itself."""
    letters = byte_letters()
    return bytes(letters[c] for c in token) if all(c in letters for c in token) else token.encode()
