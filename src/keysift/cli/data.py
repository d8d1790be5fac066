"""Tokenise text once into a corpus, or look at one."""

from pathlib import Path
from typing import Annotated, Any

import tyro

from keysift.core.config import config
from keysift.core.shown import shown


@config
class Build:
    """Make a corpus: keysift data build stdlib --out corpora/stdlib"""

    source: tyro.conf.Positional[str]
    """stdlib, abcdigits[:option=value,...], mqar[:...], hf:NAME, or a file, folder or glob in quotes."""
    out: Path
    """Folder to write; one made of the same text with the same tokenizer is kept."""
    tokenizer: str = "bytes"
    """bytes, bpe:SIZE to train one on the text, or the path of a tokenizer."""
    workers: int | None = None
    """Processes that tokenise; by default one for bytes, else one for each core."""
    json: bool = False
    """Print JSON."""


@config
class Show:
    """Look at a corpus, after its files were compared with their hashes."""

    corpus: tyro.conf.Positional[Path]
    """Folder of the corpus."""
    val_fraction: float = 0.05
    """Share of the documents that would be validation."""
    json: bool = False
    """Print JSON."""


@config
class Args:
    do: Annotated[Build, tyro.conf.subcommand("build")] | Annotated[Show, tyro.conf.subcommand("show")]


def run(args: Args) -> None:
    from keysift.cli import output
    from keysift.data.corpus import open_corpus
    from keysift.data.shards import build

    do = args.do
    if isinstance(do, Build):
        corpus, share = build(do.source, do.tokenizer, do.out, workers=do.workers), None
    else:
        corpus, share = open_corpus(do.corpus, verify="always"), do.val_fraction
    index = corpus.index
    told: dict[str, Any] = {
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
        told[f"{part}_documents"], told[f"{part}_tokens"] = split.documents, split.tokens
    if do.json:
        output.print_json(told)
        return
    table = output.table()
    table.show_header = False
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")  # a path is worth nothing with its end cut off
    for key, value in told.items():
        table.add_row(key.replace("_", " "), f"{value:,}" if isinstance(value, int) else shown(value))
    output.console().print(table)
