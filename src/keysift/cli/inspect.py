"""Measure the attention of a model on a text: a keysift model or a Hugging Face one."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from keysift.core.config import config
from keysift.core.disk import write_whole
from keysift.core.errors import DataError

if TYPE_CHECKING:
    from keysift.lens.record import Record
    from keysift.lens.subject import Subject


@config
class Args:
    model: Annotated[str, tyro.conf.Positional]
    """A keysift run or saved model, a Hugging Face directory, a .gguf file, or a name on the Hugging Face hub."""
    text: tuple[str, ...]
    """Files, - for standard input, or the text itself."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=("-o",))] = None
    """Write a self-contained HTML report here."""
    json: bool = False
    """Print the record as JSON."""
    record: Path | None = None
    """Also write the record here, as compact JSON."""
    tokens: int | None = None
    """Read only so many tokens of each text."""
    batch: int = 1
    """Texts at a time, padded on the left."""
    maps: Path | None = None
    """Also write the relevance maps of the first text here, for `keysift play` (docs/playground.md)."""
    sample: int = 16
    """Rows of each context bucket that get the expensive diagnostics."""
    swap: tuple[str, ...] = ()
    """Also weigh the model's own scores with these mechanisms, without retraining."""
    each_head: bool = False
    """Also search the fewest keys that each head alone needs; many runs of the model."""
    diagnostics_only: bool = False
    """Leave out the tests of relative relevance."""


def run(args: Args) -> None:
    from keysift.cli.output import print_json
    from keysift.cli.progress import Bar
    from keysift.hub.subject import open_subject
    from keysift.lens.examine import inspect
    from keysift.lens.pairs import pairs
    from keysift.lens.subject import checked
    from keysift.web.inspect_page import inspect_page

    texts = read_texts(args.text)
    for path in (args.out, args.record, args.maps):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
    subject = open_subject(args.model)
    name, text = next(iter(texts.items()))
    first = checked(subject, name, text, args.tokens)
    if args.maps is not None:
        _write_maps(args.maps, subject, text, args.tokens)
    with Bar() as bar:
        record = inspect(
            subject,
            texts,
            tokens=args.tokens,
            batch=args.batch,
            sample=args.sample,
            tests=not args.diagnostics_only,
            each_head=args.each_head,
            swap=args.swap,
            progress=bar.update,
        )
    if args.record is not None:
        record.save(args.record)
    if args.out is not None:
        write_whole(args.out, inspect_page([record], [pairs(subject, first)]))
    if args.json:
        print_json(record.to_json())
        return
    show(record)


def _write_maps(path: Path, subject: "Subject", text: str, tokens: int | None) -> None:
    from keysift.lens.maps import relevance_maps

    maps = relevance_maps(subject, text, tokens=tokens)
    write_whole(path, json.dumps(maps, separators=(",", ":"), allow_nan=False) + "\n")


def show(record: "Record") -> None:
    """What was found, one line for each head."""
    from rich.markup import escape

    from keysift.cli.output import console, table
    from keysift.core.shown import shown
    from keysift.web.number import number

    model = record.model
    lines = table(escape(shown(f"{model.name}: {model.family}, {model.parameters:,} parameters")))
    for column in ("layer", "head", "kind", *(title for _, title in COLUMNS)):
        # On a small terminal the kinds give way, never a number.
        lines.add_column(column, justify="left" if column == "kind" else "right", no_wrap=column != "kind")
    for head in record.heads:
        values = (head.values.get(name) for name, _ in COLUMNS)
        cells = ("" if value is None else number(value) for value in values)
        lines.add_row(str(head.layer), str(head.head), ", ".join(head.kinds), *cells)
    out = console()
    out.print(lines)
    for text in record.texts:
        out.print(f"{shown(text.name)}: {text.tokens} tokens, loss {text.loss:.3f} nats per token")
    for finding in record.findings:
        out.print(f"- {finding}")


# What the table on the terminal shows; the record has them all.
COLUMNS = (
    ("effective_keys", "keys"),
    ("largest_weight", "largest"),
    ("fading_exponent", "fading"),
    ("first_mass", "first"),
    ("reach", "reach"),
    ("recall_8", "recall"),
    ("accepted_share", "accepted"),
)


def read_texts(given: tuple[str, ...]) -> dict[str, str]:
    """Texts by name: a file's name, "standard input", or "text N" for what was typed."""
    found: dict[str, str] = {}
    for number, one in enumerate(given, 1):
        name, text = _read(one, f"text {number}")
        if not text.strip():
            raise DataError(f"{name} is empty; give a text of at least 2 tokens")
        found[name] = text
    return found


def _read(one: str, name: str) -> tuple[str, str]:
    if one == "-":
        return "standard input", sys.stdin.read()
    try:
        if Path(one).is_file():
            return one, Path(one).read_text()
    except OSError:
        pass  # a long text is no file name
    except UnicodeDecodeError as error:
        raise DataError(f"{one} is not UTF-8 text ({error}); convert it first") from error
    return name, one
