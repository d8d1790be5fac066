"""Write the files of a corpus: shards that are hashed while they are written, in a folder that appears atomically."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keysift.core.disk import atomic_folder
from keysift.core.errors import DataError
from keysift.data.corpus import DOCUMENTS, FORMAT, ROW, File, Index, shard_name
from keysift.data.documents import Source
from keysift.data.tokenizers.base import Ids, Tokenizer, id_type


class DocumentInfo(NamedTuple):
    """Bytes of text of a document, and a hash of the text that decides its split."""

    size: int
    digest: int


class Writer:
    """Writes shards of `shard_tokens` tokens; a document may span two."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, shard_tokens: int) -> None:
        self._folder = folder
        self._tokenizer = tokenizer
        self._shard_tokens = shard_tokens
        self._dtype = np.dtype(id_type(tokenizer.vocab_size)).newbyteorder("<")
        self._begin = np.array(tokenizer.prefix_ids, self._dtype)
        self._end = np.array([tokenizer.end_id], self._dtype)
        self._shards: list[_HashedFile] = []
        self._free = 0
        self._documents = _HashedFile(folder / DOCUMENTS)
        self._tokens = self._count = self._text_bytes = 0

    def add(self, info: DocumentInfo, ids: Ids) -> None:
        for part in (self._begin, ids, self._end):
            self._append(part.astype(self._dtype, copy=False))
        self._documents.write(np.array([(self._tokens, info.size, info.digest)], ROW).tobytes())
        self._count += 1
        self._text_bytes += info.size

    def _append(self, ids: Ids) -> None:
        self._tokens += len(ids)
        while len(ids):
            if not self._free:
                if self._shards:
                    self._shards[-1].close()
                self._shards.append(_HashedFile(self._folder / shard_name(len(self._shards))))
                self._free = self._shard_tokens
            here, ids = ids[: self._free], ids[self._free :]
            self._shards[-1].write(np.ascontiguousarray(here).data)
            self._free -= len(here)

    def close(self) -> None:
        for file in (self._documents, *self._shards):
            file.close()

    def finish(self, source: Source, key: str) -> Index:
        if not self._count:
            raise DataError(f"{source.name} holds no text; choose files that are not empty")
        self.close()
        return Index(
            format=FORMAT,
            key=key,
            source=source.name,
            tokenizer=self._tokenizer.name,
            tokenizer_hash=self._tokenizer.hash,
            vocab_size=self._tokenizer.vocab_size,
            end_id=self._tokenizer.end_id,
            dtype="uint16" if self._dtype.itemsize == 2 else "uint32",
            tokens=self._tokens,
            documents=self._count,
            text_bytes=self._text_bytes,
            shard_tokens=self._shard_tokens,
            files=tuple(file.entry() for file in (self._documents, *self._shards)),
        )


class _HashedFile:
    """A file that computes its sha256 while it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb", buffering=2**20)
        self._hash = hashlib.sha256()
        self._size = 0

    def write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._hash.update(data)
        self._size += memoryview(data).nbytes

    def close(self) -> None:
        self._file.close()

    def entry(self) -> File:
        return File(name=self._path.name, size=self._size, sha256=self._hash.hexdigest())


@contextmanager
def atomic_corpus(out: Path) -> Iterator[Path]:
    """A temporary folder that is renamed to `out` when the block ends, and removed if it fails."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(out) as folder:
            yield folder
    except OSError as error:
        raise DataError(
            f"{out} cannot be written ({error}); nothing was left behind, free some space or choose another folder"
        ) from error
