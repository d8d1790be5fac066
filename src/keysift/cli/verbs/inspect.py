"""Inspect the attention of a model on a text: diagnostics, experiments and findings."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from keysift.cli.flags.out_file import make_folder_of
from keysift.cli.flags.subject import check_subject, open_subject
from keysift.core.config import config, to_dict
from keysift.core.disk import write_atomic
from keysift.core.errors import ConfigError

if TYPE_CHECKING:
    from keysift.lens.model import LensModel
    from keysift.records.lens import Record


@config
class Args:
    model: Annotated[str, tyro.conf.Positional]
    """A keysift run or saved model, a Hugging Face directory, a .gguf file, or a name on the Hugging Face hub."""
    text: tuple[str, ...]
    """Files, folders, globs or sources as for keysift train --data, - for standard input, or the text itself."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=("-o",))] = None
    """Write a self-contained HTML report here."""
    details: bool = False
    """Print every finding and a line of diagnostics for each head."""
    json: bool = False
    """Print the record as JSON."""
    record: Path | None = None
    """Also write the record here, as compact JSON."""
    tokens: int | None = None
    """Maximum number of tokens per text."""
    batch: int = 1
    """Texts per batch, padded on the left."""
    maps: Path | None = None
    """Also write the relevance maps of the first text here, for `keysift play` (docs/playground.md)."""
    sample: int = 16
    """Queries per context bucket used for the expensive diagnostics."""
    swap: tuple[str, ...] = ()
    """Also weigh the model's own scores with these mechanisms, without retraining."""
    each_head: bool = False
    """Also search the fewest keys that each head alone needs; many runs of the model."""
    diagnostics_only: bool = False
    """Leave out the tests of relative relevance."""
    watch: bool = False
    """Inspect the checkpoints of a run, and each new one while it trains: -o shows how heads form."""


def run(args: Args) -> None:
    start = time.monotonic()
    from keysift.cli.flags.texts import read_texts

    check_subject(args.model)
    texts = read_texts(args.text)
    for flag, path in (("--out", args.out), ("--record", args.record), ("--maps", args.maps)):
        if path is not None:
            make_folder_of(path, flag)
    from keysift.cli.flags.command_line import command_line
    from keysift.cli.terminal.output import print_json, print_plain
    from keysift.cli.terminal.progress import ProgressBar
    from keysift.core.terminal import escape_line
    from keysift.lens.inspection import inspect
    from keysift.lens.model import encode_text
    from keysift.web.inspect.page import inspect_page

    if args.watch:
        _watch(args, texts)
        return
    subject = open_subject(args.model)
    name, text = next(iter(texts.items()))
    encode_text(subject, name, text, args.tokens)  # a text that is too long fails before the work starts
    if args.maps is not None:
        _write_maps(args.maps, subject, text, args.tokens, name, command=command_line("inspect", args))
    with ProgressBar() as bar:
        record = inspect(
            subject,
            texts,
            tokens=args.tokens,
            batch=args.batch,
            sample=args.sample,
            tests=not args.diagnostics_only,
            each_head=args.each_head,
            swap=args.swap,
            maps=args.out is not None or args.record is not None,
            progress=bar.update,
        )
    if args.record is not None:
        record.save(args.record)
    if args.out is not None:
        write_atomic(args.out, inspect_page([record]))
    if args.json:
        print_json(record.to_json())
        return
    show(record, details=args.details)
    if args.out is not None:
        size, seconds = args.out.stat().st_size / 1e6, time.monotonic() - start
        print_plain(f"\n{escape_line(str(args.out))}: {size:.2f} MB, made in {seconds:.1f} s")


def _watch(args: Args, texts: dict[str, str]) -> None:
    """Write the page again after each checkpoint of a run, and print a line for it."""
    from keysift.cli.terminal.output import console
    from keysift.cli.terminal.progress import ProgressBar
    from keysift.core.terminal import escape_line
    from keysift.lens.film import film
    from keysift.web.inspect.page import inspect_page

    refused = {"--json": args.json, "--record": args.record, "--maps": args.maps, "--swap": args.swap}
    given = [flag for flag, value in {**refused, "--each-head": args.each_head}.items() if value]
    if args.out is None or given:
        came = f"got {given[0]}" if given else "none was given"
        raise ConfigError(f"--watch writes a page to the file of -o and nothing else, {came}; use -o report.html")
    with ProgressBar() as bar:
        frames = film(
            Path(args.model).expanduser(),
            texts,
            tokens=args.tokens,
            batch=args.batch,
            sample=args.sample,
            progress=bar.update,
        )
        for records in frames:
            write_atomic(args.out, inspect_page(records))
            newest = records[-1]
            loss = sum(text.loss for text in newest.texts) / len(newest.texts)
            kinds = sorted({kind for head in newest.heads for kind in head.kinds})
            line = f"{newest.model.name}: loss {loss:.3f}, kinds of heads: {', '.join(kinds) or 'none'}; {args.out}"
            console().print(escape_line(line))


def _write_maps(path: Path, subject: "LensModel", text: str, tokens: int | None, name: str, *, command: str) -> None:
    from keysift.lens.diagnostics.relevance_maps import relevance_maps

    maps = relevance_maps(subject, text, tokens=tokens, source=name, command=command)
    write_atomic(path, json.dumps(to_dict(maps), separators=(",", ":"), allow_nan=False) + "\n")


def show(record: "Record", *, details: bool = False) -> None:
    """Print the findings that matter and the heads by kind; with `details` all findings and a line for each head."""
    from keysift.cli.flags.texts import describe_text
    from keysift.cli.terminal.output import console
    from keysift.core.terminal import escape_line
    from keysift.records.head_kinds import ALL_KINDS

    out, model = console(), record.model
    out.print(escape_line(f"{model.name}: {model.family}, {model.parameters:,} parameters, {len(record.heads)} heads"))
    for text in record.texts:
        out.print(describe_text(text))
    for number, finding in enumerate(record.findings if details else record.story, 1):
        out.print(f"\n{number}. {finding.sentence}")
        out.print(f"   {finding.meaning}", style="dim")
        out.print(f"   Try: {finding.action}")
    if not details:
        left = len(record.findings) - len(record.story)
        more = f"{left} more finding{'s' * (left > 1)} and a table" if left else "A table"
        out.print(f"\n{more} of all heads: --details, or the page of -o report.html")
    out.print("\nHeads by kind")
    for kind in ALL_KINDS:
        labels = [head.label for head in record.heads if kind.name in head.kinds]
        if labels:
            out.print(f"   {kind.name}: {', '.join(labels)}")
    named = sum(bool(head.kinds) for head in record.heads)
    out.print(f"   of no single kind: {len(record.heads) - named} of {len(record.heads)}")
    if details:
        _show_heads(record)


def _show_heads(record: "Record") -> None:
    from keysift.cli.terminal.output import console, table
    from keysift.core.number import number
    from keysift.records.lens_terms import columns

    lines = table()
    for column in ("layer", "head", "kind", *(heading for _, heading in columns())):
        # On a small terminal the kinds give way, never a number.
        lines.add_column(column, justify="left" if column == "kind" else "right", no_wrap=column != "kind")
    for head in record.heads:
        values = (head.values.get(name) for name, _ in columns())
        cells = ("" if value is None else number(value) for value in values)
        lines.add_row(str(head.layer), str(head.head), ", ".join(head.kinds), *cells)
    console().print(lines)
