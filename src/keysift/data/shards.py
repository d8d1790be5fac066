"""Tokenise once: a source and a tokenizer become a corpus on disk, whole or not at all.

    corpus = prepare("stdlib")                                   # in the cache; made if it is not there
    corpus = build("notes/*.md", "bpe:4096", Path("corpora/notes"))

Everything is written to a folder beside the target, which gets its name only when all is on disk.
"""

import hashlib
import json
import os
import shutil
import socket
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keysift.core.errors import DataError, RangeError
from keysift.data.corpus import DOCUMENTS, FORMAT, INDEX, ROW, Corpus, File, Index, open_corpus, read_index, write_index
from keysift.data.progress import Meter
from keysift.data.sources import Document, Source, find_source
from keysift.data.tokenizer import Bytes, Ids, Tokenizer, find_tokenizer, id_type, save_tokenizer
from keysift.data.workers import encode_chunks

SHARD_TOKENS = 2**26
_CHUNK = 2**21  # characters of text handed to a worker at once
_BPE_TEXT = 2**28  # characters a BPE is trained on


def cache_folder() -> Path:
    """$KEYSIFT_CACHE, or keysift/ in the user's cache folder."""
    named = os.environ.get("KEYSIFT_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(named) if named else home / "keysift"


def prepare(
    source: str,
    tokenizer: str | Tokenizer | None = None,
    *,
    cache: Path | None = None,
    workers: int | None = None,
    show: bool = True,
) -> Corpus:
    """The corpus of a source: a built one by its path, else from the cache, else built into the cache.

    Without a tokenizer, a built corpus is taken as it is and a new one is made of bytes.
    """
    path = Path(source).expanduser()
    if (path / INDEX).is_file():
        corpus = open_corpus(path)
        return corpus if tokenizer is None else _as_wanted(corpus, tokenizer)
    tokenizer = tokenizer or Bytes()
    found = find_source(source)
    key = _key(found, tokenizer)
    name = "".join(c if c.isalnum() else "-" for c in found.name)[-40:].strip("-")
    return build(found, tokenizer, (cache or cache_folder()) / f"{name}-{key[:16]}", workers=workers, show=show)


def build(
    source: str | Source,
    tokenizer: str | Tokenizer,
    out: Path,
    *,
    workers: int | None = None,
    shard_tokens: int = SHARD_TOKENS,
    show: bool = True,
) -> Corpus:
    """Writes the corpus `out`, or opens it if it was made of the same source with the same tokenizer.

    `tokenizer` is a Tokenizer, `bytes`, the path of one, or `bpe:SIZE` to train one on the source. `workers` processes
    share the work; by default one for bytes, where moving text costs more than encoding it, else one for each core.
    """
    if shard_tokens < 1 or (workers is not None and workers < 1):
        raise RangeError(f"shard_tokens and workers must be at least 1, got {shard_tokens} and {workers}")
    source = find_source(source) if isinstance(source, str) else source
    key = _key(source, tokenizer)
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        return _reuse(out, key)
    with _fresh(out) as folder:
        chosen = _tokenizer(tokenizer, source, show)
        if workers is None:
            workers = 1 if isinstance(chosen, Bytes) else os.cpu_count() or 1
        meter = Meter(f"tokenising {source.name}", source.size, show=show)
        with closing(_Writer(folder, chosen, shard_tokens)) as writer, meter:
            for facts, ids in _encoded(source, chosen, workers):
                for fact, tokens in zip(facts, ids, strict=True):
                    writer.add(fact, tokens)
                meter.advance(sum(fact.size for fact in facts))
            index = writer.finish(source, key)
        save_tokenizer(chosen, folder)
        write_index(index, folder)
        _sync(folder)
        try:
            folder.rename(out)
        except OSError:
            if not (out / INDEX).is_file():
                raise
            return _reuse(out, key)  # another process was faster
    return open_corpus(out)


def _key(source: Source, tokenizer: str | Tokenizer) -> str:
    trained = isinstance(tokenizer, str) and tokenizer.startswith("bpe:")
    named = tokenizer if trained else (find_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer)
    wanted = named if isinstance(named, str) else named.hash
    return hashlib.sha256(json.dumps([FORMAT, source.identity(), wanted]).encode()).hexdigest()


def _reuse(out: Path, key: str) -> Corpus:
    index = read_index(out)
    if index.key != key:
        raise DataError(
            f"{out} holds another corpus ({index.source} with {index.tokenizer}), or its source has changed since; "
            f"remove it or choose another folder"
        )
    return open_corpus(out)


def _as_wanted(corpus: Corpus, tokenizer: str | Tokenizer) -> Corpus:
    if isinstance(tokenizer, str) and tokenizer.startswith("bpe:"):
        same = tokenizer == corpus.index.tokenizer
    else:
        wanted = find_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        same = wanted.hash == corpus.index.tokenizer_hash
    if not same:
        name = tokenizer if isinstance(tokenizer, str) else tokenizer.name
        raise DataError(
            f"{corpus.path} was made with {corpus.index.tokenizer}, not {name}; build it anew or drop the choice"
        )
    return corpus


def _tokenizer(tokenizer: str | Tokenizer, source: Source, show: bool) -> Tokenizer:
    if not isinstance(tokenizer, str):
        return tokenizer
    if not tokenizer.startswith("bpe:"):
        return find_tokenizer(tokenizer)
    size = tokenizer.removeprefix("bpe:")
    if not size.isdecimal():
        raise DataError(f"a BPE to train is written bpe:SIZE, e.g. bpe:8192; got {tokenizer!r}")
    from keysift.data import bpe  # bytes must work without loading `tokenizers`

    with Meter(f"training {tokenizer}", source.size, show=show) as meter:

        def seen(document: Document) -> str:
            meter.advance(len(document.text))
            return document.text

        texts = map(seen, source.documents())
        return bpe.train(takewhile(lambda _: meter.done < _BPE_TEXT, texts), int(size))


class _Fact(NamedTuple):
    """What is kept of a document besides its tokens: bytes of text, and a hash of them that decides its split."""

    size: int
    digest: int


def _encoded(source: Source, tokenizer: Tokenizer, workers: int) -> Iterator[tuple[list[_Fact], list[Ids]]]:
    waiting: deque[list[_Fact]] = deque()

    def texts() -> Iterator[list[str]]:
        for chunk in _chunks(source):
            waiting.append([_fact(document) for document in chunk])
            yield [document.text for document in chunk]

    for ids in encode_chunks(tokenizer, texts(), workers):
        yield waiting.popleft(), ids


def _chunks(source: Source) -> Iterator[list[Document]]:
    chunk: list[Document] = []
    held = 0
    for document in source.documents():
        if not document.text:
            continue
        chunk.append(document)
        held += len(document.text)
        if held >= _CHUNK:
            yield chunk
            chunk, held = [], 0
    if chunk:
        yield chunk


def _fact(document: Document) -> _Fact:
    try:
        text = document.text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{document.name} holds half a surrogate pair at character {error.start}, which is no text; remove it"
        ) from error
    return _Fact(len(text), int.from_bytes(hashlib.sha256(text).digest()[:8], "little"))


class _Writer:
    """Shards of `shard_tokens` each, hashed as they are written; a document may span two."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, shard_tokens: int) -> None:
        self._folder = folder
        self._tokenizer = tokenizer
        self._shard_tokens = shard_tokens
        self._dtype = np.dtype(id_type(tokenizer.vocab_size)).newbyteorder("<")
        self._end = np.array([tokenizer.end_id], self._dtype)
        self._shards: list[_Hashed] = []
        self._room = 0
        self._documents = _Hashed(folder / DOCUMENTS)
        self._tokens = self._count = self._text_bytes = 0

    def add(self, fact: _Fact, ids: Ids) -> None:
        for part in (ids, self._end):
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
def _fresh(out: Path) -> Iterator[Path]:
    """A folder beside `out` that is gone afterwards unless it was renamed. What killed builds left here goes too."""
    prefix = f".{out.name}.building-{socket.gethostname()}-"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for left in out.parent.glob(f"{prefix}*"):
            if not _alive(left.name.removeprefix(prefix).split("-")[0]):
                shutil.rmtree(left, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=out.parent))
    except OSError as error:
        raise DataError(f"{out} cannot be written ({error}); choose a folder you may write to") from error
    try:
        folder.chmod(0o755)
        yield folder
    except OSError as error:
        raise DataError(f"writing {out} failed ({error}); nothing was left behind, make room and retry") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        pass  # it lives, and belongs to someone else
    return True


def _sync(folder: Path) -> None:
    for path in [*folder.iterdir(), folder]:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
