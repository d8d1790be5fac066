"""Tokenise once: a source and a tokenizer become a corpus on disk, whole or not at all.

    corpus = prepare("stdlib")                                   # in the cache; made if it is not there
    corpus = build("notes/*.md", "bpe:4096", Path("corpora/notes"))

Everything is written to a folder beside the target, which gets its name only when all is on disk.
"""

import hashlib
import json
import os
import shutil
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from itertools import takewhile
from pathlib import Path

from keysift.core.errors import DataError, RangeError
from keysift.core.threads import examine
from keysift.data.corpus import FORMAT, INDEX, Corpus, open_corpus, read_index, write_index
from keysift.data.progress import Meter
from keysift.data.sources import Document, Generated, Source, find_source
from keysift.data.tokenizer import Bytes, Ids, Tokenizer, find_tokenizer, save_tokenizer, utf8
from keysift.data.workers import encode_chunks
from keysift.data.writer import Fact, Writer, fresh

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
    try:
        with fresh(out) as folder:
            chosen = _tokenizer(tokenizer, source, show)
            if workers is None:
                workers = 1 if isinstance(chosen, Bytes) else examine().usable
            _check_room(source, chosen, folder)
            meter = Meter(f"tokenising {source.name}", source.size, show=show)
            with closing(Writer(folder, chosen, shard_tokens)) as writer, meter.live:
                for note in source.notes:
                    meter.live.say(note)
                for facts, ids in _encoded(source, chosen, workers):
                    for fact, tokens in zip(facts, ids, strict=True):
                        writer.add(fact, tokens)
                    meter.advance(sum(fact.size for fact in facts), source.position)
                index = writer.finish(source, key)
            save_tokenizer(chosen, folder)
            write_index(index, folder)
    except DataError:
        if not (out / INDEX).is_file():
            raise
        return _reuse(out, key)  # another process was faster
    return open_corpus(out)


def _check_room(source: Source, tokenizer: Tokenizer, folder: Path) -> None:
    """Refuses what cannot fit before any of it is written."""
    if isinstance(source, Generated):
        size = len(source.recipe.document(0).text) * source.recipe.documents
    else:
        size = source.size or 0
    # Bytes become two each. A BPE's tokens are longer: eight bytes of text for two are more than any we know packs.
    needed = 2 * size if isinstance(tokenizer, Bytes) else size // 4
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"{source.name} would take about {needed / 1e9:,.1f} GB and {folder.parent} has {free / 1e9:,.1f} GB free; "
            f"ask for less, or make room"
        )


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

    meter = Meter(f"training {tokenizer}", source.size, show=show)
    with meter.live:

        def seen(document: Document) -> str:
            meter.advance(len(document.text), source.position)
            return document.text

        texts = map(seen, source.documents())
        return bpe.train(takewhile(lambda _: meter.done < _BPE_TEXT, texts), int(size))


def _encoded(source: Source, tokenizer: Tokenizer, workers: int) -> Iterator[tuple[list[Fact], list[Ids]]]:
    waiting: deque[list[Fact]] = deque()

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


def _fact(document: Document) -> Fact:
    try:
        text = utf8(document.text)
    except DataError as error:
        raise DataError(f"{document.name}: {error}") from error
    return Fact(len(text), int.from_bytes(hashlib.sha256(text).digest()[:8], "little"))
