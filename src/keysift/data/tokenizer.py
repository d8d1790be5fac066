"""Bytes as tokens: every text can be read, and nothing needs to be downloaded."""

import json
from collections.abc import Sequence
from pathlib import Path


class Bytes:
    """Ids 0 to 255 are bytes, 256 ends a document."""

    vocab_size = 257
    end_id = 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < self.end_id).decode(errors="replace")

    def save(self, directory: Path) -> None:
        (directory / "keysift_tokenizer.json").write_text(json.dumps({"tokenizer": "bytes"}) + "\n")


def load_tokenizer(directory: Path) -> Bytes:
    return Bytes()
