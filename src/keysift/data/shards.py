"""Tokenize a source once and store it as a corpus on disk, atomically.

corpus = prepare("stdlib")                                   # from the cache, built if missing
corpus = build("notes/*.md", "bpe:4096", Path("corpora/notes"))
"""

import hashlib
import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import takewhile
from pathlib import Path

from keysift.core.errors import DataError, RangeError
from keysift.core.number import data_size
from keysift.core.threads import examine
from keysift.data.corpus import FORMAT, INDEX, Corpus, open_corpus, read_index, write_index
from keysift.data.documents import Document, Generated, Source
from keysift.data.progress import Meter
from keysift.data.sources import find_source
from keysift.data.tokenizers.base import Ids, Tokenizer, utf8
from keysift.data.tokenizers.bytes import Bytes
from keysift.data.tokenizers.load import find_tokenizer, save_tokenizer
from keysift.data.workers import encode_chunks
from keysift.data.writer import DocumentInfo, Writer, atomic_corpus

SHARD_TOKENS = 2**26
_CHUNK = 2**21  # characters of text sent to a worker at once
_BPE_TEXT = 2**28  # characters to train a BPE on


CACHE = "KEYSIFT_CACHE"
Encode = Callable[[Tokenizer, Iterable[list[str]]], Iterator[list[Ids]]]


def cache_folder() -> Path:
    """$KEYSIFT_CACHE, or keysift/ in the user's cache folder."""
    named, xdg = os.environ.get(CACHE), os.environ.get("XDG_CACHE_HOME")
    if named:
        return Path(named)
    try:
        return (Path(xdg) if xdg else Path.home() / ".cache") / "keysift"
    except RuntimeError as error:
        raise DataError(f"the cache needs a home folder ({error}); set {CACHE} to a folder for corpora") from error


def _make_cache(folder: Path) -> None:
    remedy = f"set {CACHE} to a folder that can be written"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"the cache folder {folder} cannot be created ({error.strerror}); {remedy}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DataError(f"the cache folder {folder} is read-only; {remedy}")


def prepare(
    source: str,
    tokenizer: str | Tokenizer | None = None,
    *,
    cache: Path | None = None,
    workers: int | None = None,
    show: bool = True,
) -> Corpus:
    """Open the corpus of a source: a built corpus by its path, or one in the cache, which is built if missing.

    Without a tokenizer, a built corpus keeps its own, and a new one uses bytes.
    """
    path = Path(source).expanduser()
    if (path / INDEX).is_file():
        corpus = open_corpus(path)
        return corpus if tokenizer is None else _check_tokenizer(corpus, tokenizer)
    tokenizer = tokenizer or Bytes()
    found = find_source(source)
    key = _key(found, tokenizer)
    name = "".join(c if c.isalnum() else "-" for c in found.name)[-40:].strip("-")
    folder = cache or cache_folder()
    out = folder / f"{name}-{key[:16]}"
    if not (out / INDEX).is_file():
        _make_cache(folder)
    return build(found, tokenizer, out, workers=workers, show=show)


def build(
    source: str | Source,
    tokenizer: str | Tokenizer,
    out: Path,
    *,
    workers: int | None = None,
    encode: Encode | None = None,
    shard_tokens: int = SHARD_TOKENS,
    show: bool = True,
) -> Corpus:
    """Build the corpus `out`, or open it if it was built from the same source with the same tokenizer.

    `tokenizer` is a Tokenizer, `bytes`, a path, or `bpe:SIZE` to train one on the source. The default number of
    `workers` is one process per core, and one for bytes, where moving text costs more than encoding it. `encode`
    replaces them: it gets the tokenizer and chunks of texts, and returns their token ids in order.
    """
    if shard_tokens < 1 or (workers is not None and workers < 1):
        raise RangeError(f"shard_tokens and workers must be at least 1, got {shard_tokens} and {workers}")
    source = find_source(source) if isinstance(source, str) else source
    key = _key(source, tokenizer)
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        return _reuse(out, key)
    try:
        with atomic_corpus(out) as folder:
            chosen = _tokenizer(tokenizer, source, show)
            if workers is None:
                workers = 1 if isinstance(chosen, Bytes) else examine().usable
            _check_disk_space(source, chosen, folder)
            meter = Meter(f"tokenizing {source.name}", source.size, show=show)
            with closing(Writer(folder, chosen, shard_tokens)) as writer, meter.live:
                for note in source.notes:
                    meter.live.print(note)
                for infos, ids in _encoded(source, chosen, encode or partial(encode_chunks, workers=workers)):
                    for info, tokens in zip(infos, ids, strict=True):
                        writer.add(info, tokens)
                    meter.advance(sum(info.size for info in infos), source.position)
                index = writer.finish(source, key)
            save_tokenizer(chosen, folder)
            write_index(index, folder)
    except DataError:
        if not (out / INDEX).is_file():
            raise
        return _reuse(out, key)  # another process built it meanwhile
    return open_corpus(out)


def _check_disk_space(source: Source, tokenizer: Tokenizer, folder: Path) -> None:
    """Raise DataError if the corpus cannot fit on the disk."""
    if isinstance(source, Generated):
        size = len(source.recipe.document(0).text) * source.recipe.documents
    else:
        size = source.size or 0
    # A byte token takes two bytes. A BPE token is assumed to hold eight bytes of text, more than any known tokenizer.
    needed = 2 * size if isinstance(tokenizer, Bytes) else size // 4
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"{source.name} would take about {data_size(needed)} and {folder.parent} has {data_size(free)} free; "
            f"use less text, or free some space"
        )


def _key(source: Source, tokenizer: str | Tokenizer) -> str:
    trained = isinstance(tokenizer, str) and tokenizer.startswith("bpe:")
    chosen = tokenizer if trained else (find_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer)
    identity = chosen if isinstance(chosen, str) else chosen.hash
    return hashlib.sha256(json.dumps([FORMAT, source.identity(), identity]).encode()).hexdigest()


def _reuse(out: Path, key: str) -> Corpus:
    index = read_index(out)
    if index.key != key:
        raise DataError(
            f"{out} holds another corpus ({index.source} with {index.tokenizer}), or its source has changed since; "
            f"remove it or choose another folder"
        )
    return open_corpus(out)


def _check_tokenizer(corpus: Corpus, tokenizer: str | Tokenizer) -> Corpus:
    if isinstance(tokenizer, str) and tokenizer.startswith("bpe:"):
        same = tokenizer == corpus.index.tokenizer
    else:
        chosen = find_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        same = chosen.hash == corpus.index.tokenizer_hash
    if not same:
        name = tokenizer if isinstance(tokenizer, str) else tokenizer.name
        raise DataError(
            f"{corpus.path} was built with {corpus.index.tokenizer}, not {name}; build it again or drop the tokenizer"
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
    from keysift.data.tokenizers import bpe

    meter = Meter(f"training {tokenizer}", source.size, show=show)
    with meter.live:

        def count(document: Document) -> str:
            meter.advance(len(document.text), source.position)
            return document.text

        texts = map(count, source.documents())
        return bpe.train(takewhile(lambda _: meter.done < _BPE_TEXT, texts), int(size))


def _encoded(source: Source, tokenizer: Tokenizer, encode: Encode) -> Iterator[tuple[list[DocumentInfo], list[Ids]]]:
    waiting: deque[list[DocumentInfo]] = deque()

    def texts() -> Iterator[list[str]]:
        for chunk in _chunks(source):
            waiting.append([_info(document) for document in chunk])
            yield [document.text for document in chunk]

    for ids in encode(tokenizer, texts()):
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


def _info(document: Document) -> DocumentInfo:
    try:
        text = utf8(document.text)
    except DataError as error:
        raise DataError(f"{document.name}: {error}") from error
    return DocumentInfo(len(text), int.from_bytes(hashlib.sha256(text).digest()[:8], "little"))
