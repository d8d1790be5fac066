"""The files of a corpus: shards hashed as they are written, in a folder that is whole or not there."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keysift.core.disk import whole_folder
from keysift.core.errors import DataError
from keysift.data.corpus import DOCUMENTS, FORMAT, ROW, File, Index
from keysift.data.sources import Source
from keysift.data.tokenizer import Ids, Tokenizer, id_type


class Fact(NamedTuple):
    """What is kept of a document besides its tokens: bytes of text, and a hash of them that decides its split."""

    size: int
    digest: int


class Writer:
    """Shards of `shard_tokens` each, hashed as they are written; a document may span two."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, shard_tokens: int) -> None:
        self._folder = folder
        self._tokenizer = tokenizer
        self._shard_tokens = shard_tokens
        self._dtype = np.dtype(id_type(tokenizer.vocab_size)).newbyteorder("<")
        self._begin = np.array(tokenizer.begin, self._dtype)
        self._end = np.array([tokenizer.end_id], self._dtype)
        self._shards: list[_Hashed] = []
        self._room = 0
        self._documents = _Hashed(folder / DOCUMENTS)
        self._tokens = self._count = self._text_bytes = 0

    def add(self, fact: Fact, ids: Ids) -> None:
        for part in (self._begin, ids, self._end):
            self._append(part.astype(self._dtype, copy=False))
        self._documents.write(np.array([(self._tokens, fact.size, fact.digest)], ROW).tobytes())
        self._count += 1
        self._text_bytes += fact.size

    def _append(self, ids: Ids) -> None:
        self._tokens += len(ids)
        while len(ids):
            if not self._room:
                if self._shards:
                    self._shards[-1].close()
                self._shards.append(_Hashed(self._folder / f"shard-{len(self._shards):05d}.bin"))
                self._room = self._shard_tokens
            here, ids = ids[: self._room], ids[self._room :]
            self._shards[-1].write(np.ascontiguousarray(here).data)
            self._room -= len(here)

    def close(self) -> None:
        for file in (self._documents, *self._shards):
            file.close()

    def finish(self, source: Source, key: str) -> Index:
        if not self._count:
            raise DataError(f"{source.name} holds no text at all; point at files with something in them")
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
            files=tuple(file.told() for file in (self._documents, *self._shards)),
        )


class _Hashed:
    """A file that knows the sha256 of what was written to it."""

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

    def told(self) -> File:
        return File(name=self._path.name, size=self._size, sha256=self._hash.hexdigest())


@contextmanager
def fresh(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its name when it is whole, and is gone otherwise."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with whole_folder(out) as folder:
            yield folder
    except OSError as error:
        raise DataError(
            f"{out} cannot be written ({error}); nothing was left behind, make room or choose another folder"
        ) from error
