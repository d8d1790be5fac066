"""Tokens to a terminal as they come: no half characters, and nothing that may be the beginning of a stop text."""

from collections.abc import Callable, Sequence
from typing import TextIO

HALF = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """Writes the text of a growing list of tokens, each character once."""

    def __init__(self, decode: Callable[[list[int]], str], stop: Sequence[str], out: TextIO) -> None:
        self._decode = decode
        self._stop = stop
        self._out = out
        self._ids: list[int] = []
        self._written = 0

    @property
    def tokens(self) -> int:
        return len(self._ids)

    def add(self, token: int) -> None:
        self._ids.append(token)
        text = self._text()
        # Bytes that may still become a character decode to one replacement, however many they are.
        whole = text.removesuffix(HALF)
        self._write(text[: len(whole) - self._maybe_stop(whole)])

    def finish(self) -> None:
        """Write what was held back, and end the line."""
        self._write(self._text())
        self._out.write("\n")
        self._out.flush()

    def _text(self) -> str:
        text = self._decode(self._ids)
        return text[: min((at for at in map(text.find, self._stop) if at >= 0), default=len(text))]

    def _maybe_stop(self, text: str) -> int:
        """How many characters at the end could begin a stop text."""
        lengths = (n for stop in self._stop for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n]))
        return max(lengths, default=0)

    def _write(self, text: str) -> None:
        self._out.write(text[self._written :])
        self._out.flush()
        self._written = max(self._written, len(text))
