"""A tokenized corpus on disk: memory-mapped shards, a table of documents and an index with hashes.

DIR/index.json        description and hashes of the corpus; carries its own hash
DIR/shard-00000.bin   token ids, little-endian: all documents, each followed by the end token
DIR/documents.bin     per document: end (in tokens), length (in bytes of text), hash of the text
DIR/...               the tokenizer, as load_tokenizer reads it
"""

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from keysift.core import safe_json
from keysift.core.config import config, from_dict, to_dict
from keysift.core.errors import DataError, RangeError
from keysift.data.documents import GENERATED
from keysift.data.tokenizers.base import Ids, Tokenizer
from keysift.data.tokenizers.load import load_tokenizer

FORMAT = 1
INDEX, DOCUMENTS, VERIFIED = "index.json", "documents.bin", "verified.json"
ROW = np.dtype([("end", "<u8"), ("bytes", "<u8"), ("hash", "<u8")])

Part = Literal["train", "val"]
Verify = Literal["sizes", "once", "always"]


@config
class File:
    name: str
    size: int
    sha256: str


@config
class Index:
    """Description of a corpus. `key` identifies its source and tokenizer, `hash` its content."""

    format: int
    key: str
    source: str
    tokenizer: str
    tokenizer_hash: str
    vocab_size: int
    end_id: int
    dtype: Literal["uint16", "uint32"]
    tokens: int
    documents: int
    text_bytes: int
    shard_tokens: int
    files: tuple[File, ...]  # the table of documents, then the shards in order

    @property
    def generated(self) -> bool:
        """Whether documents come from a generated task, which must not be cut."""
        return self.source in GENERATED

    @property
    def hash(self) -> str:
        content = [self.tokenizer_hash, self.dtype, *(file.sha256 for file in self.files)]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def write_index(index: Index, directory: Path) -> None:
    data = to_dict(index)
    (directory / INDEX).write_text(json.dumps({**data, "sha256": _digest(data)}, indent=1) + "\n")


def read_index(directory: Path) -> Index:
    path = directory / INDEX
    if not path.is_file():
        raise DataError(f"{directory} is not a corpus: it has no {INDEX}; make one with keysift data build")
    try:
        data = safe_json.load(path)
        digest = data.pop("sha256")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise DataError(f"{path} is damaged ({error!r}); build the corpus again") from error
    if digest != _digest(data):
        raise DataError(f"{path} was changed: it does not match its own sha256; build the corpus again")
    if data.get("format") != FORMAT:
        raise DataError(f"{path} has format {data.get('format')}, this version reads {FORMAT}; build the corpus again")
    index = from_dict(Index, data)
    _check_files(path, index)
    return index


def _check_files(path: Path, index: Index) -> None:
    """Raise DataError unless the files are those of a corpus with this many documents, tokens and tokens per shard."""
    positive = min(index.shard_tokens, index.tokens, index.documents) > 0
    size, rest = np.dtype(index.dtype).itemsize, index.tokens
    sizes = [ROW.itemsize * index.documents]
    while positive and rest > 0 and len(sizes) <= len(index.files):
        sizes.append(size * min(index.shard_tokens, rest))
        rest -= index.shard_tokens
    names = [DOCUMENTS, *(shard_name(number) for number in range(len(sizes) - 1))]
    if not positive or [(file.name, file.size) for file in index.files] != list(zip(names, sizes, strict=True)):
        raise DataError(
            f"{path} lists {len(index.files)} files that do not fit {index.documents} documents and {index.tokens} "
            f"tokens in shards of {index.shard_tokens}; build the corpus again"
        )


def shard_name(number: int) -> str:
    """File name of a shard."""
    return f"shard-{number:05d}.bin"


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


class Corpus:
    """An open corpus. Tokens stay on disk until they are read."""

    def __init__(self, path: Path, index: Index) -> None:
        self.path = path
        self.index = index
        self.table: npt.NDArray[Any] = np.memmap(path / DOCUMENTS, ROW, mode="r")
        self._shards: list[Ids] = [np.memmap(path / file.name, index.dtype, mode="r") for file in index.files[1:]]

    @property
    def tokenizer(self) -> Tokenizer:
        tokenizer = load_tokenizer(self.path)
        if tokenizer.hash != self.index.tokenizer_hash:
            raise DataError(
                f"the tokenizer in {self.path} is not the one the corpus was built with "
                f"({tokenizer.hash[:12]}, expected {self.index.tokenizer_hash[:12]}); build the corpus again"
            )
        return tokenizer

    def read(self, start: int, stop: int) -> Ids:
        """Tokens [start, stop) of the whole corpus, in the order of the source."""
        size = self.index.shard_tokens
        parts = [
            self._shards[i][max(start - i * size, 0) : stop - i * size]
            for i in range(start // size, (stop - 1) // size + 1)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def split(self, part: Part, val_fraction: float = 0.05) -> "Split":
        """The training or validation documents, chosen by a hash of the text: copies of a document stay together."""
        if not 0 <= val_fraction < 1:
            raise RangeError(
                f"val_fraction is a fraction of the documents, at least 0 and below 1, got {val_fraction:g}"
            )
        ends, hashes = self.table["end"], self.table["hash"]
        if ends[-1] != self.index.tokens or ends[0] < 1 or (ends[1:] <= ends[:-1]).any():
            raise DataError(
                f"{self.path / DOCUMENTS} does not divide {self.index.tokens} tokens into documents; "
                f"build the corpus again"
            )
        chosen = hashes < np.uint64(int(val_fraction * 2**64))
        if val_fraction:
            if hashes.min() == hashes.max():
                raise DataError(
                    f"{self.index.source} holds one document or copies of one, which cannot be split into training and "
                    f"validation; add text (a single file is cut into sections if it has at least 256 bytes)"
                )
            chosen |= hashes == hashes.min()
            chosen &= hashes != hashes.max()
        elif part == "val":
            raise DataError("val_fraction=0 leaves no validation set; pass a fraction above 0")
        return Split(self, part, chosen if part == "val" else ~chosen)


class Split:
    """Some documents of a corpus, read as one contiguous token stream."""

    def __init__(self, corpus: Corpus, name: str, chosen: npt.NDArray[np.bool_]) -> None:
        ends = corpus.table["end"].astype(np.int64)
        starts = np.concatenate([[0], ends[:-1]])
        self.corpus = corpus
        self.name = f"the {name} part of {corpus.index.source}"
        self.documents = int(chosen.sum())
        self.text_bytes = int(corpus.table["bytes"][chosen].sum())
        # Adjacent documents are read at once: a run is a maximal range of chosen documents.
        first = chosen & ~np.concatenate([[False], chosen[:-1]])
        last = chosen & ~np.concatenate([chosen[1:], [False]])
        self._from = starts[first]
        self._until = np.cumsum(ends[last] - self._from)
        self._ends = np.cumsum((ends - starts)[chosen])
        self.tokens = int(self._ends[-1])
        content = [corpus.index.hash, hashlib.sha256(np.packbits(chosen).tobytes()).hexdigest()]
        self.hash = hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @property
    def ends(self) -> npt.NDArray[np.int64]:
        """End of each document in tokens, including its end token."""
        return self._ends

    @property
    def bytes_per_token(self) -> float:
        """Bytes of text per token: bits per byte = loss in nats / (ln 2 * bytes_per_token)."""
        return self.text_bytes / self.tokens

    def read(self, start: int, stop: int) -> Ids:
        """Tokens [start, stop) of the split."""
        if not 0 <= start < stop <= self.tokens:
            raise RangeError(f"{self.name} has tokens 0 to {self.tokens}, got a range from {start} to {stop}")
        parts = []
        run = int(np.searchsorted(self._until, start, side="right"))
        while start < stop:
            until = int(self._until[run])
            here = min(stop, until)
            end = int(self._from[run]) + until - (int(self._until[run - 1]) if run else 0)
            parts.append(self.corpus.read(end - (until - start), end - (until - here)))
            start, run = here, run + 1
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def begins(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Start of each document in tokens [start, stop), relative to `start`; a document that is cut starts at 0."""
        inside = self._ends[np.searchsorted(self._ends, start, "right") : np.searchsorted(self._ends, stop, "left")]
        return np.concatenate(([0], inside - start))


def open_corpus(path: Path, verify: Verify = "once") -> Corpus:
    """Open a corpus and verify its files.

    Sizes are always checked. Hashes are checked `always`, or `once` per file until its size or modification time
    changes.
    """
    index = read_index(path)
    stamps = {file.name: _stamp(path, file) for file in index.files}
    verified = _verified(path, index) if verify == "once" else {}
    if verify != "sizes":
        for file in index.files:
            if verified.get(file.name) != stamps[file.name]:
                _check_hash(path, file)
        if verified != stamps:
            _remember(path, index, stamps)
    return Corpus(path, index)


def _stamp(path: Path, file: File) -> list[int]:
    try:
        state = (path / file.name).stat()
    except FileNotFoundError as error:
        raise DataError(f"{path / file.name} is missing; build the corpus again") from error
    if not stat.S_ISREG(state.st_mode):
        raise DataError(f"{path / file.name} is not a regular file; build the corpus again")
    if state.st_size != file.size:
        raise DataError(f"{path / file.name} has {state.st_size} bytes, expected {file.size}; build the corpus again")
    return [state.st_size, state.st_mtime_ns]


def _check_hash(path: Path, file: File) -> None:
    with (path / file.name).open("rb") as data:
        digest = hashlib.file_digest(data, "sha256").hexdigest()
    if digest != file.sha256:
        raise DataError(
            f"{path / file.name} is corrupt: its sha256 is {digest[:16]}..., expected {file.sha256[:16]}...; "
            f"build the corpus again"
        )


def _verified(path: Path, index: Index) -> dict[str, Any]:
    try:
        data = safe_json.load(path / VERIFIED)
    except (OSError, ValueError):
        return {}
    if not isinstance(data, dict) or data.get("hash") != index.hash:
        return {}
    stamps = data.get("stamps")
    return stamps if isinstance(stamps, dict) else {}


def _remember(path: Path, index: Index, stamps: dict[str, list[int]]) -> None:
    fresh = path / f".{VERIFIED}.{os.getpid()}"
    try:
        fresh.write_text(json.dumps({"hash": index.hash, "stamps": stamps}) + "\n")
        fresh.replace(path / VERIFIED)
    except OSError:
        return  # a read-only corpus is verified each time it is opened
