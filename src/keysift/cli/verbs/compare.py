"""Compare the attention of several models on the same texts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from keysift.cli.flags.out_file import make_folder_of
from keysift.cli.flags.subject import check_subject, open_subject
from keysift.core.config import config
from keysift.core.disk import write_atomic
from keysift.core.errors import ConfigError

if TYPE_CHECKING:
    from keysift.records.lens import Record


@config
class Args:
    models: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Two or more models: keysift runs, Hugging Face directories, .gguf files or names, as for `keysift inspect`."""
    text: tuple[str, ...]
    """Files, folders, globs or sources as for keysift train --data, - for standard input, or the text itself."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=("-o",))] = None
    """Write a self-contained HTML report here."""
    json: bool = False
    """Print the records as a JSON list."""
    tokens: int | None = None
    """Maximum number of tokens per text."""
    batch: int = 1
    """Texts per batch, padded on the left."""
    sample: int = 16
    """Queries per context bucket used for the expensive diagnostics."""


def run(args: Args) -> None:
    from keysift.cli.flags.texts import read_texts

    if len(args.models) < 2:
        raise ConfigError(f"compare needs two models or more, got {len(args.models)}; for one use keysift inspect")
    for where in args.models:
        check_subject(where)
    texts = read_texts(args.text)
    name, text = next(iter(texts.items()))
    if args.out is not None:
        make_folder_of(args.out)
    from keysift.cli.terminal.output import print_json
    from keysift.cli.terminal.progress import ProgressBar
    from keysift.lens.inspection import inspect
    from keysift.lens.model import encode_text
    from keysift.web.inspect.page import inspect_page

    subjects = [open_subject(where) for where in args.models]
    for subject in subjects:
        encode_text(subject, name, text, args.tokens)
    records = []
    for subject in subjects:
        with ProgressBar() as bar:
            record = inspect(
                subject, texts, tokens=args.tokens, batch=args.batch, sample=args.sample, progress=bar.update
            )
        records.append(record)
    if args.out is not None:
        write_atomic(args.out, inspect_page(records))
    if args.json:
        print_json([record.to_json() for record in records])
        return
    show(records)


def show(records: "list[Record]") -> None:
    """Print a table with one column for each model, and the texts that each model read."""
    from rich.markup import escape

    from keysift.cli.flags.texts import describe_text
    from keysift.cli.terminal.output import console, table
    from keysift.core.number import number
    from keysift.core.terminal import escape_line
    from keysift.records.lens_comparison import comparison

    lines = table()
    lines.add_column("mean over heads")
    for record in records:
        lines.add_column(escape(escape_line(record.model.name)), justify="right")
    for title, values in comparison(records):
        cells = (f"{value:,}" if isinstance(value, int) else "" if value is None else number(value) for value in values)
        lines.add_row(title, *cells)
    out = console()
    out.print(lines)
    for record in records:
        out.print(escape_line(f"{record.model.name} read:"))
        for text in record.texts:
            out.print(describe_text(text))
