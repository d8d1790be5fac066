"""Incremental decoding of one row: whole characters only, and nothing at or after a stop text.

The cost per token does not depend on the length of the text.
"""

from collections.abc import Sequence

from keysift.data.tokenizers.decoder import Decoder

_BEFORE = 8  # tokens of context for the decoder; one character has at most this many tokens


class TextStream:
    """Emits each character once, as soon as it is certain to precede the first stop text.

    `after` holds the preceding tokens. Only the last few matter: some tokenizers add a space only after another word.
    """

    def __init__(self, decoder: Decoder, stop: Sequence[str] = (), after: Sequence[int] = ()) -> None:
        for token in after[-_BEFORE:]:
            decoder.add(token)
        self._decoder = decoder
        self._stop = stop
        self._held = ""
        self.stopped = False

    def add(self, token: int) -> str:
        """The characters that can be emitted after this token."""
        return self._search(self._decoder.add(token))

    def end(self) -> str:
        """The text held back so far. Call it after the last token."""
        text = self._search(self._decoder.end())
        rest, self._held = self._held, ""
        return text + rest

    def _search(self, piece: str) -> str:
        text = self._held + piece
        # The stop text that ends first, as if characters arrived singly; of two that end together, the longer.
        ends = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        if ends:
            self.stopped, self._held = True, ""
            return text[: min(ends)[1]]
        certain = len(text) - self._maybe_stop(text)
        self._held = text[certain:]
        return text[:certain]

    def _maybe_stop(self, text: str) -> int:
        """Number of characters at the end that may be the beginning of a stop text."""
        lengths = (n for stop in self._stop for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n]))
        return max(lengths, default=0)
