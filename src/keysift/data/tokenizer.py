"""Text to token ids and back. `Bytes` needs nothing; anything else is a BPE file (see bpe.py).

    Bytes().encode("é") == [195, 169]
    load_tokenizer(Path("runs/first")).decode([104, 105]) == "hi"

A tokenizer is kept in a directory: a tokenizer.json with its settings as Hugging Face writes them, and for bytes a
marker beside it, so that reading them back needs no other package.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from keysift.core import jsons
from keysift.core.errors import DataError, RangeError
from keysift.data.decoder import Decoder, Utf8Decoder, byte_letters

Ids = npt.NDArray[Any]  # uint16, or uint32 where the vocabulary needs it

MARKER = "keysift_tokenizer.json"
END = "<|endoftext|>"  # how the end of a document is spelled in files; no text is read as it


class Tokenizer(Protocol):
    """What the data layer asks of a tokenizer. Two with one `hash` give the same ids for every text."""

    @property
    def name(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def end_id(self) -> int: ...
    @property
    def begin(self) -> tuple[int, ...]:
        """The tokens that every text begins with: none, or the begin token of pretrained models."""
        ...

    @property
    def hash(self) -> str: ...
    def encode(self, text: str) -> list[int]: ...
    def encode_array(self, text: str) -> Ids:
        """The same ids as `encode`, for whole documents."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text; end tokens are dropped."""
        ...

    def decoder(self) -> Decoder:
        """The same text, token by token."""
        ...

    def save(self, directory: Path) -> None: ...


def utf8(text: str) -> bytes:
    """A command line or a file name that is not UTF-8 reaches Python as half surrogate pairs, which are no text."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"the text is not UTF-8: character {error.start} is {text[error.start]!r}, half of a surrogate pair; "
            f"remove it"
        ) from error


def id_type(vocab_size: int) -> type[np.uint16] | type[np.uint32]:
    return np.uint16 if vocab_size <= 2**16 else np.uint32


class Bytes:
    """Every UTF-8 byte is a token: ids 0 to 255, and 256 ends a document."""

    name: str = "bytes"
    vocab_size: int = 257
    end_id: int = 256
    begin: tuple[int, ...] = ()

    @property
    def hash(self) -> str:
        return hashlib.sha256(b"keysift bytes, end 256").hexdigest()

    def encode(self, text: str) -> list[int]:
        return list(utf8(text))

    def encode_array(self, text: str) -> Ids:
        return np.frombuffer(utf8(text), np.uint8).astype(np.uint16)

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(self._spelled, ids)).decode(errors="replace")

    def decoder(self) -> Decoder:
        return Utf8Decoder(self._spelled)

    def _spelled(self, token: int) -> bytes:
        if not 0 <= token <= self.end_id:
            raise RangeError(f"the bytes tokenizer has ids 0 to {self.end_id}, got {token}; use the model's own")
        return b"" if token == self.end_id else bytes((token,))

    def save(self, directory: Path) -> None:
        (directory / MARKER).write_text(json.dumps({"tokenizer": self.name}) + "\n")
        letters = dict(sorted(byte_letters().items(), key=lambda pair: pair[1]))
        # A byte-level BPE that merges nothing: the same ids by the `tokenizers` package.
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


def save_settings(directory: Path, name: str, end: str, end_id: int) -> None:
    """What transformers needs beside tokenizer.json: which class reads it, and which token ends a text."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "name": name,
        "eos_token": end,
        "pad_token": end,
        "padding_side": "left",
        "split_special_tokens": True,  # text that spells the end token stays text
        "model_input_names": ["input_ids", "attention_mask"],
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    ends = {"eos_token_id": end_id, "pad_token_id": end_id}
    (directory / "generation_config.json").write_text(json.dumps(ends, indent=2) + "\n")


def save_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Writes what `load_tokenizer(path)` reads back."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(path)


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer kept in a directory (a run, a corpus, a Hugging Face model) or in a tokenizer.json."""
    marker = path / MARKER
    if marker.is_file():
        return _marked(marker)
    from keysift.data import bpe  # bytes must work without loading `tokenizers`

    if path.is_file():
        return bpe.from_file(path)
    if (path / "tokenizer.json").is_file():
        found = bpe.from_file(path / "tokenizer.json")
        return Bytes() if found.merges_nothing and found.end_id == Bytes.end_id else found
    for vocabulary, merges in bpe.PAIRS:
        if (path / vocabulary).is_file() and (path / merges).is_file():
            return bpe.from_pair(path / vocabulary, path / merges)
    raise DataError(
        f"{path} holds no tokenizer; expected {MARKER}, tokenizer.json or one of "
        f"{', '.join(' + '.join(pair) for pair in bpe.PAIRS)}; write one with save_tokenizer"
    )


def find_tokenizer(name: str) -> Tokenizer:
    """`bytes`, `recall:...` (the symbols of a task), or a path `load_tokenizer` understands."""
    if name == Bytes.name:
        return Bytes()
    if name.startswith("recall:"):
        from keysift.data.symbols import named  # it stands on this module

        return named(name)
    if name.startswith("bpe:"):
        raise DataError(
            f"{name!r} is trained on a corpus; pass it to build or prepare, or give the path of a trained one"
        )
    return load_tokenizer(Path(name).expanduser())


def _marked(marker: Path) -> Tokenizer:
    try:
        says = jsons.loads(marker.read_bytes())
    except ValueError as error:
        raise DataError(f"{marker} is not JSON ({error}); write it anew with save_tokenizer") from error
    name = says.get("tokenizer") if isinstance(says, dict) and len(says) == 1 else None
    if not isinstance(name, str) or not (name == Bytes.name or name.startswith("recall:")):
        raise DataError(
            f"{marker} must say {{'tokenizer': 'bytes'}} or name the symbols of a task, got {says!r}; "
            f"write it anew with save_tokenizer"
        )
    return find_tokenizer(name)
