"""Measure how fast kernels, mechanisms, models and training are, or show what was measured."""

from contextlib import nullcontext
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from keysift.core.config import config, load, save
from keysift.core.errors import DataError
from keysift.core.shown import styled

if TYPE_CHECKING:
    from keysift.bench.record import Result


@config
class Common:
    """What every benchmark takes."""

    quick: bool = False
    """About a minute: fewer turns and smaller sizes, so no target counts as met or missed."""
    json: bool = False
    """Print JSON."""
    out: Path | None = None
    """Also write the JSON here, and beside it an SVG where there is a plot. What was stopped resumes from here."""


_COMMON = {field.name for field in fields(Common)}


@config
class Screening(Common):
    """The screening kernel against the dense definition, against softmax, and against its targets."""


@config
class Mechanisms(Common):
    """What each mechanism costs beside torch's scaled_dot_product_attention, in time and memory."""


@config
class Models(Common):
    """Whole models side by side: Multiscreen, a Transformer of its size, and the same with windows alone."""


@config
class Documents(Common):
    """A training step on packed documents, against one document a row."""


@config
class Decode(Common):
    """Whether memory or time per token grows with the text while a Multiscreen decodes."""

    tokens: int | None = None
    """How much text."""
    psi: int | None = None
    """Size of the Multiscreen."""


@config
class Tokenise(Common):
    """How fast text becomes a corpus on disk."""

    file: Path | None = None
    """A text of your own instead of the standard library."""


@config
class Train(Common):
    """What the training loop adds to bare steps, and Multiscreen beside a Transformer of its size."""

    psi: int | None = None
    """Size of the Multiscreen."""
    context: int | None = None
    """Tokens of a sequence."""
    batch_tokens: int | None = None
    """Tokens of a step."""
    steps: int | None = None
    """Steps of each kind."""
    data: str | None = None
    """As in keysift train."""


@config
class Show:
    """A result that was written with --out."""

    result: tyro.conf.Positional[Path]
    """The JSON file."""
    markdown: bool = False
    """Print Markdown tables, as in the documentation."""
    svg: bool = False
    """Print the plot as SVG."""


@config
class Args:
    do: (
        Annotated[Screening, tyro.conf.subcommand("screening")]
        | Annotated[Mechanisms, tyro.conf.subcommand("mechanisms")]
        | Annotated[Models, tyro.conf.subcommand("models")]
        | Annotated[Documents, tyro.conf.subcommand("documents")]
        | Annotated[Decode, tyro.conf.subcommand("decode")]
        | Annotated[Tokenise, tyro.conf.subcommand("tokenise")]
        | Annotated[Train, tyro.conf.subcommand("train")]
        | Annotated[Show, tyro.conf.subcommand("show")]
    )


def run(args: Args) -> None:
    if isinstance(args.do, Show):
        _show(args.do)
    else:
        _measure(args.do)


def _measure(do: Common) -> None:
    from keysift.bench.gather import drafting
    from keysift.cli import output
    from keysift.web.performance_page import curves, plot

    name = type(do).__name__.lower()
    module = import_module(f"keysift.bench.{name}")
    own = {field.name: getattr(do, field.name) for field in fields(do) if field.name not in _COMMON}
    given = {key: value for key, value in own.items() if value is not None}
    flags = [" --quick"] * do.quick + [f" --{key.replace('_', '-')} {value}" for key, value in given.items()]
    command = f"keysift bench {name}{''.join(flags)}"
    if do.out is not None:
        do.out.parent.mkdir(parents=True, exist_ok=True)
    with nullcontext() if do.out is None else drafting(do.out.with_suffix(".part"), command):
        found = module.measure(
            replace(module.QUICK if do.quick else module.FULL, **given),
            command=command,
            say=output.print_note,  # stderr: --json prints nothing but JSON
        )
    if do.out is not None:
        save(found, do.out)
        if curves(found):
            do.out.with_suffix(".svg").write_text(plot(found))
    if do.json:
        output.print_json(found)
    else:
        _table(found)


def _show(do: Show) -> None:
    from keysift.bench.record import Result
    from keysift.cli import output
    from keysift.web.performance_page import curves, markdown, plot

    if not do.result.is_file():
        raise DataError(f"no result at {do.result}; write one with keysift bench NAME --out {do.result}")
    found = load(Result, do.result)
    if do.markdown:
        output.print_plain(markdown(found))
    elif do.svg:
        if not curves(found):
            raise DataError(f"{do.result} holds nothing at two lengths, so there is no curve to plot; use --markdown")
        output.print_plain(plot(found))
    else:
        _table(found)


def _table(found: "Result") -> None:
    from keysift.cli import output
    from keysift.web.performance_page import COLUMNS, machine_line, measured, verdict

    console = output.console()
    colours = {True: "green", False: "red", None: "dim"}
    targets = output.table("Targets")
    for head in ("", "measured", "target", "what"):
        targets.add_column(head, no_wrap=head != "what")
    for target in found.targets:
        colour = colours[target.met]
        value, wanted = measured(target)
        targets.add_row(styled((verdict(target), colour)), value, wanted, target.name)
    if found.targets:
        console.print(targets)
    rows = output.table("Times")
    columns = [column for column in COLUMNS if any(column.of(row) for row in found.rows)]
    for column in columns:
        rows.add_column(column.head)
    for row in found.rows:
        rows.add_row(*(column.of(row) for column in columns))
    console.print(rows)
    console.print(f"\n{machine_line(found.machine)}", soft_wrap=True)
    for note in found.notes:
        console.print(note, soft_wrap=True)
