"""The text of a row as its tokens come: no half characters, nothing that may be the beginning of a stop text.

Each token costs the same, however long the text has become.
"""

from collections.abc import Sequence
from typing import Protocol

_BEFORE = 8  # tokens; as many as spell one character at most


class Decoder(Protocol):
    """Tokens to text, one by one; `tokenizer.decoder()` makes one."""

    def add(self, token: int) -> str:
        """The characters this token completes."""
        ...

    def end(self) -> str:
        """What is left of a character that will not be completed."""
        ...


class TextStream:
    """Gives each character once, as soon as it is certain to come before the first stop text.

    `after` are the tokens it follows, of which the last count: a word has its blank only behind another.
    """

    def __init__(self, decoder: Decoder, stop: Sequence[str] = (), after: Sequence[int] = ()) -> None:
        for token in after[-_BEFORE:]:
            decoder.add(token)
        self._decoder = decoder
        self._stop = stop
        self._held = ""
        self.stopped = False

    def add(self, token: int) -> str:
        """What can be shown after this token."""
        return self._search(self._decoder.add(token))

    def end(self) -> str:
        """What was held back, once no more tokens come."""
        text = self._search(self._decoder.end())
        rest, self._held = self._held, ""
        return text + rest

    def _search(self, piece: str) -> str:
        text = self._held + piece
        # The one that is complete first, as if the text came letter by letter; of two, the longer.
        ends = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        if ends:
            self.stopped, self._held = True, ""
            return text[: min(ends)[1]]
        certain = len(text) - self._maybe_stop(text)
        self._held = text[certain:]
        return text[:certain]

    def _maybe_stop(self, text: str) -> int:
        """How many characters at the end could begin a stop text."""
        lengths = (n for stop in self._stop for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n]))
        return max(lengths, default=0)
