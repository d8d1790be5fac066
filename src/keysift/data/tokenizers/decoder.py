"""Streaming decoders: text token by token, at constant cost per token.

The concatenated results of `add` and `end` equal the tokenizer's `decode` of all tokens.
"""

import codecs
from collections.abc import Callable, Collection
from functools import cache
from typing import Protocol

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
_LONGEST = 8  # tokens


class Decoder(Protocol):
    """Incremental decoder from tokens to text; `tokenizer.decoder()` returns one."""

    def add(self, token: int) -> str:
        """The characters that this token completes."""
        ...

    def end(self) -> str:
        """The rest: a character that was not completed."""
        ...


class Utf8Decoder:
    """For tokens that are pieces of UTF-8. A character may span tokens."""

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token: int) -> str:
        return self._characters.decode(self._bytes_of(token))

    def end(self) -> str:
        return self._characters.decode(b"", final=True)


class WindowDecoder:
    """For any other tokenizer: decodes the last tokens with and without the new one and returns the difference.

    `silent` tokens have no text. Tokens that end in an incomplete character are held back, eight at most; a tokenizer
    that spells unknown characters byte by byte needs four.
    """

    def __init__(self, decode: Callable[[list[int]], str], silent: Collection[int]) -> None:
        self._decode = decode
        self._silent = silent
        self._ids: list[int] = []
        self._known = 0  # number of these ids whose text was returned

    def add(self, token: int) -> str:
        if token in self._silent:
            return ""
        self._ids.append(token)
        text = self._decode(self._ids)
        if text.endswith(INCOMPLETE) and len(self._ids) - self._known < _LONGEST:
            return ""
        return self._return_new(text)

    def end(self) -> str:
        return self._return_new(self._decode(self._ids)) if len(self._ids) > self._known else ""

    def _return_new(self, text: str) -> str:
        new = text[len(self._decode(self._ids[: self._known])) :]
        # Keep the last tokens: some tokenizers write the blank before a word only after another word.
        self._ids = self._ids[self._known :]
        self._known = len(self._ids)
        return new


@cache
def byte_letters() -> dict[str, int]:
    """The alphabet of byte-level BPE: printable Latin-1 maps to itself, the other 68 bytes to U+0100 and on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + at): byte for at, byte in enumerate(moved)}


def token_bytes(token: str) -> bytes:
    """The bytes of a byte-level token; an added token is plain text."""
    letters = byte_letters()
    return bytes(letters[c] for c in token) if all(c in letters for c in token) else token.encode()
