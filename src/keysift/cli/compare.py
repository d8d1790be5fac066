"""Measure the attention of several models on the same texts, side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from keysift.core.config import config
from keysift.core.disk import write_whole
from keysift.core.errors import ConfigError

if TYPE_CHECKING:
    from keysift.lens.record import Record


@config
class Args:
    models: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Two or more: keysift runs, Hugging Face directories, .gguf files or names, as for `keysift inspect`."""
    text: tuple[str, ...]
    """Files, - for standard input, or the text itself."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=("-o",))] = None
    """Write a self-contained HTML report here."""
    json: bool = False
    """Print the records as a JSON list."""
    tokens: int | None = None
    """Read only so many tokens of each text."""
    batch: int = 1
    """Texts at a time, padded on the left."""
    sample: int = 16
    """Rows of each context bucket that get the expensive diagnostics."""


def run(args: Args) -> None:
    from keysift.cli.inspect import read_texts
    from keysift.cli.output import print_json
    from keysift.cli.progress import Bar
    from keysift.hub.subject import open_subject
    from keysift.lens.examine import inspect
    from keysift.lens.pairs import pairs
    from keysift.lens.subject import checked
    from keysift.web.inspect_page import inspect_page

    if len(args.models) < 2:
        raise ConfigError(f"compare needs two models or more, got {len(args.models)}; for one use keysift inspect")
    texts = read_texts(args.text)
    name, text = next(iter(texts.items()))
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
    subjects = [open_subject(where) for where in args.models]
    first = [checked(subject, name, text, args.tokens) for subject in subjects]
    records = []
    for subject in subjects:
        with Bar() as bar:
            found = inspect(
                subject, texts, tokens=args.tokens, batch=args.batch, sample=args.sample, progress=bar.update
            )
            records.append(found)
    if args.out is not None:
        stored = [pairs(subject, ids) for subject, ids in zip(subjects, first, strict=True)]
        write_whole(args.out, inspect_page(records, stored))
    if args.json:
        print_json([record.to_json() for record in records])
        return
    show(records)


# What the table on the terminal shows; the records have them all.
ROWS = (
    ("effective_keys", "effective keys"),
    ("largest_weight", "largest weight"),
    ("fading_exponent", "fading exponent"),
    ("first_mass", "sink mass"),
    ("row_mass", "row mass"),
    ("accepted_share", "accepted share"),
    ("refuses_all", "rows that refuse all"),
    ("left_out_moved", "moved by leaving a key out"),
    ("only_relatively_bright", "only relatively bright"),
)


def show(records: "list[Record]") -> None:
    from rich.markup import escape

    from keysift.cli.output import console, table
    from keysift.core.shown import shown
    from keysift.lens.findings import mean

    lines = table()
    lines.add_column("mean over heads")
    for record in records:
        lines.add_column(escape(shown(record.model.name)), justify="right")
    losses = (sum(text.loss for text in record.texts) / len(record.texts) for record in records)
    lines.add_row("loss, nats per token", *(f"{loss:.3f}" for loss in losses))
    for name, title in ROWS:
        means = (mean(record.heads, name) for record in records)
        lines.add_row(title, *("" if value is None else f"{value:.3g}" for value in means))
    console().print(lines)
