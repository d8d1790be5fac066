"""Benchmark of tokenization: from text to a corpus on disk, reading and hashing included.

The text is the standard library, repeated in one file, unless a file is given. The first 100,000 tokens are decoded
and compared with the text before a result is reported.
"""

import os
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

from keysift.bench.collector import Collector, Log
from keysift.bench.timing import row, seconds
from keysift.core.config import config
from keysift.core.errors import DisagreementError
from keysift.data import Corpus, build, find_source
from keysift.data.corpus import open_corpus
from keysift.data.tokenizers import bpe
from keysift.data.tokenizers.base import Tokenizer
from keysift.data.tokenizers.bytes import Bytes
from keysift.records.bench import Result, Row
from keysift.runs import machine


@config
class Sizes:
    """Megabytes of text, and how often each tokenizer runs over them."""

    megabytes: float = 100.0
    bpe_megabytes: float = 8.0
    vocabulary: int = 4096
    rounds: int = 3
    file: Path | None = None
    """A text of the user's own instead of the standard library."""


FULL = Sizes()
QUICK = Sizes(megabytes=10.0, bpe_megabytes=1.0, vocabulary=512, rounds=2)


def measure(sizes: Sizes, *, command: str, log: Log) -> Result:
    results = Collector(machine.examine(), log)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        text = sizes.file or write_text(root / "long.txt", sizes.megabytes)
        log(f"bytes, {text.stat().st_size / 1e6:,.1f} MB")
        results.rows.append(time(Bytes(), text, root, sizes.rounds, workers=1))
        short = write_text(root / "short.txt", sizes.bpe_megabytes)
        log(f"BPE, {sizes.bpe_megabytes:g} MB")
        documents = (document.text for document in find_source(str(short)).documents())
        tokenizer = bpe.train(list(documents), vocab_size=sizes.vocabulary)
        for workers in sorted({1, os.cpu_count() or 1}):
            results.rows.append(time(tokenizer, short, root, sizes.rounds, workers=workers))
    return results.result("tokenise", command)


def write_text(path: Path, megabytes: float) -> Path:
    size = 0
    with path.open("w") as file:
        while size < megabytes * 1e6:
            for document in find_source("stdlib").documents():
                size += len(document.text.encode())
                file.write(document.text)
                if size >= megabytes * 1e6:
                    break
    return path


def time(tokenizer: Tokenizer, path: Path, root: Path, rounds: int, *, workers: int) -> Row:
    folders = [root / f"{tokenizer.hash[:8]}-{workers}-{number}" for number in range(rounds)]
    once = partial(build, str(path), tokenizer, workers=workers, show=False)
    times = [seconds(partial(once, folder)) for folder in folders]
    corpus = open_corpus(folders[-1])
    check(corpus, path)
    timed = row(f"{tokenizer.name}, {workers} worker{'s' * (workers > 1)}", "tokenise", corpus.index.tokens, times)
    each = 1e6 * timed.seconds.median
    return replace(timed, mb_per_s=corpus.index.text_bytes / each, tokens_per_s=1e6 * timed.tokens / each)


def check(corpus: Corpus, path: Path) -> None:
    """Raise DisagreementError unless the first 100,000 tokens decode to the beginning of the text."""
    head = corpus.tokenizer.decode(corpus.read(0, min(corpus.index.tokens, 100_000)).tolist())
    source = next(iter(find_source(str(path)).documents())).text
    shared = min(len(head), len(source)) - 8  # the last character may be incomplete
    if head[:shared] != source[:shared]:
        raise DisagreementError(f"{corpus.index.tokenizer} does not give the text back, so it is not timed")
