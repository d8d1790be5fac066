"""The built-in tokenizer: one token per UTF-8 byte. It needs no other package.

Bytes().encode("é") == [195, 169]
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keysift.core.errors import RangeError
from keysift.data.tokenizers.base import END, MARKER, Ids, save_settings, utf8
from keysift.data.tokenizers.decoder import Decoder, Utf8Decoder, byte_letters


class Bytes:
    """One token per UTF-8 byte: ids 0 to 255; 256 ends a document."""

    name: str = "bytes"
    vocab_size: int = 257
    end_id: int = 256
    prefix_ids: tuple[int, ...] = ()

    @property
    def hash(self) -> str:
        return hashlib.sha256(b"keysift bytes, end 256").hexdigest()

    def encode(self, text: str) -> list[int]:
        return list(utf8(text))

    def encode_array(self, text: str) -> Ids:
        return np.frombuffer(utf8(text), np.uint8).astype(np.uint16)

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(self._bytes_of, ids)).decode(errors="replace")

    def decoder(self) -> Decoder:
        return Utf8Decoder(self._bytes_of)

    def _bytes_of(self, token: int) -> bytes:
        if not 0 <= token <= self.end_id:
            raise RangeError(
                f"the bytes tokenizer has ids 0 to {self.end_id}, got {token}; use the model's own tokenizer"
            )
        return b"" if token == self.end_id else bytes((token,))

    def save(self, directory: Path) -> None:
        (directory / MARKER).write_text(json.dumps({"tokenizer": self.name}) + "\n")
        letters = dict(sorted(byte_letters().items(), key=lambda pair: pair[1]))
        # A byte-level BPE without merges produces the same ids in the `tokenizers` package.
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
        unnormalised = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        engine = {
            "version": "1.0",
            "added_tokens": [{"id": self.end_id, "content": END, **unnormalised, "special": True}],
            "pre_tokenizer": level,
            "decoder": level,
            "model": {"type": "BPE", "vocab": letters, "merges": []},
        }
        (directory / "tokenizer.json").write_text(json.dumps(engine))
        save_settings(directory, self.name, END, self.end_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bytes)

    def __hash__(self) -> int:
        return hash(self.name)
