"""Build a tokenized corpus, or show one."""

from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from keysift.cli.flags.place import Place
from keysift.core.config import config
from keysift.core.errors import ConfigError
from keysift.core.terminal import escape_line


@config
class Build:
    """Build a corpus: keysift data build stdlib --out corpora/stdlib"""

    source: tyro.conf.Positional[str]
    """stdlib, abcdigits[:option=value,...], mqar[:...], hf:NAME, or a file, folder or glob in quotes."""
    out: Path
    """Folder to write. An existing corpus of the same text and tokenizer is reused."""
    tokenizer: str = "bytes"
    """bytes, bpe:SIZE to train a tokenizer on the text, or the path of a tokenizer."""
    workers: int | None = None
    """Tokenizer processes; by default one for bytes, otherwise one per core."""
    place: Place = field(default_factory=Place)
    json: bool = False
    """Print JSON."""


@config
class Show:
    """Show a corpus. Its files are verified against their hashes first."""

    corpus: tyro.conf.Positional[Path]
    """Folder of the corpus."""
    val_fraction: float = 0.05
    """Share of the documents to use for validation."""
    json: bool = False
    """Print JSON."""


@config
class Args:
    do: Annotated[Build, tyro.conf.subcommand("build")] | Annotated[Show, tyro.conf.subcommand("show")]


def run(args: Args) -> None:
    from keysift.cli.terminal import output
    from keysift.data.corpus import open_corpus
    from keysift.data.shards import build

    do = args.do
    if isinstance(do, Build):
        if do.place.on == "ray":
            if do.workers is not None:
                raise ConfigError("--workers is for processes here; on Ray, the cores of the cluster decide")
            from keysift.data.cluster import connect
            from keysift.data.ray_workers import encode_chunks
            from keysift.data.sources import find_source

            source = find_source(do.source)  # refused before a cluster is started
            with connect(do.place.address) as ray:
                corpus = build(source, do.tokenizer, do.out, encode=partial(encode_chunks, ray))
        else:
            corpus = build(do.source, do.tokenizer, do.out, workers=do.workers)
        share = None
    else:
        corpus, share = open_corpus(do.corpus, verify="always"), do.val_fraction
    index = corpus.index
    facts: dict[str, Any] = {
        "path": str(corpus.path),
        "source": index.source,
        "tokenizer": index.tokenizer,
        "vocab_size": index.vocab_size,
        "documents": index.documents,
        "tokens": index.tokens,
        "text_bytes": index.text_bytes,
        "shards": len(index.files) - 1,
        "hash": index.hash,
    }
    for part in ("train", "val") if share else ():
        split = corpus.split(part, share or 0.0)
        facts[f"{part}_documents"], facts[f"{part}_tokens"] = split.documents, split.tokens
    if do.json:
        output.print_json(facts)
        return
    table = output.table()
    table.show_header = False
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")  # a truncated path cannot be used
    for key, value in facts.items():
        table.add_row(key.replace("_", " "), f"{value:,}" if isinstance(value, int) else escape_line(value))
    output.console().print(table)
