"""Benchmark kernels, mechanisms, models and training, or show a stored result."""

from contextlib import nullcontext
from dataclasses import fields, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from keysift.core.config import config, save
from keysift.core.errors import DataError
from keysift.core.terminal import styled

if TYPE_CHECKING:
    from keysift.records.bench import Result


@config
class Common:
    """Flags of every benchmark."""

    quick: bool = False
    """About a minute: fewer rounds and smaller sizes. Targets are not judged."""
    json: bool = False
    """Print JSON."""
    out: Path | None = None
    """Also write the JSON here, with an SVG plot next to it. An interrupted benchmark resumes from here."""


_COMMON = {field.name for field in fields(Common)}
_MODULES = {
    "decode": "decode.times",
    "documents": "packed_documents",
    "tokenise": "tokenization",
    "search": "search.times",
}


@config
class Screening(Common):
    """The screening kernel compared with the dense definition and with softmax, and its targets."""

    device: str | None = None
    """cuda: compare the GPU kernels with torch's attention instead."""


@config
class Mechanisms(Common):
    """Time and memory of each mechanism compared with torch's scaled_dot_product_attention."""

    limit: float | None = None
    """Seconds after which no more rounds of one mechanism and length begin, 4 by default."""
    alone: float | None = None
    """At the longest length, leave out what is expected to take more seconds than this, 60 by default."""


@config
class Overhead(Common):
    """What a small call of attend costs beyond the operator that computes its result."""


@config
class Models(Common):
    """Whole models: Multiscreen against a Transformer of its size."""


@config
class Search(Common):
    """Exact search: one query of a tile with an infinite window, by context, and the keys it need not read."""


@config
class Documents(Common):
    """A training step on packed documents, compared with one document per row."""


@config
class Decode(Common):
    """Time of a token: a Llama against transformers, and a Multiscreen on a long text, with its memory."""

    tokens: int | None = None
    """Length of the text in tokens."""
    psi: int | None = None
    """Size of the Multiscreen."""


@config
class Tokenise(Common):
    """Speed of tokenizing text into a corpus on disk."""

    file: Path | None = None
    """A text file to use instead of the standard library."""


@config
class Train(Common):
    """Overhead of the training loop over bare steps, and Multiscreen compared with a Transformer of the same size."""

    psi: int | None = None
    """Size of the Multiscreen."""
    context: int | None = None
    """Tokens per sequence."""
    batch_tokens: int | None = None
    """Tokens per step."""
    steps: int | None = None
    """Steps per measurement."""
    data: str | None = None
    """Data source, as for keysift train."""


@config
class Show:
    """Show a result that was written with --out."""

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
        | Annotated[Overhead, tyro.conf.subcommand("overhead")]
        | Annotated[Models, tyro.conf.subcommand("models")]
        | Annotated[Search, tyro.conf.subcommand("search")]
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
    from keysift.bench.collector import resumable
    from keysift.cli.flags.out_file import make_folder_of
    from keysift.cli.terminal import output
    from keysift.web.shared.benchmark_plot import curves, plot

    name = type(do).__name__.lower()
    module = import_module(f"keysift.bench.{_MODULES.get(name, name)}")
    own = {field.name: getattr(do, field.name) for field in fields(do) if field.name not in _COMMON}
    changes = {key: value for key, value in own.items() if value is not None}
    flags = [" --quick"] * do.quick + [f" --{key.replace('_', '-')} {value}" for key, value in changes.items()]
    command = f"keysift bench {name}{''.join(flags)}"
    if do.out is not None:
        make_folder_of(do.out)
    with nullcontext() if do.out is None else resumable(do.out.with_suffix(".part"), command):
        result = module.measure(
            replace(module.QUICK if do.quick else module.FULL, **changes),
            command=command,
            log=output.print_note,  # stderr: --json prints nothing but JSON
            **_peer(do),
        )
    if do.out is not None:
        save(result, do.out)
        if curves(result):
            do.out.with_suffix(".svg").write_text(plot(result), encoding="utf-8")
    if do.json:
        output.print_json(result)
    else:
        _table(result)


def _peer(do: Common) -> dict[str, Any]:
    """The Llama of transformers for the decode benchmark, if transformers is installed."""
    if not isinstance(do, Decode) or find_spec("transformers") is None:
        return {}
    from keysift.hub.llama import TransformersLlama

    return {"peer": TransformersLlama}


def _show(do: Show) -> None:
    from keysift.bench.tables import markdown
    from keysift.cli.terminal import output
    from keysift.records.bench import read_result
    from keysift.web.shared.benchmark_plot import curves, plot

    result = read_result(do.result)
    if do.markdown:
        output.print_plain(markdown(result))
    elif do.svg:
        if not curves(result):
            raise DataError(
                f"{do.result} has nothing measured at two lengths, so there is no curve to plot; use --markdown"
            )
        output.print_plain(plot(result))
    else:
        _table(result)


def _table(result: "Result") -> None:
    from keysift.bench.tables import COLUMNS, machine_line, measured, verdict
    from keysift.cli.terminal import output

    console = output.console()
    colours = {True: "green", False: "red", None: "dim"}
    targets = output.table("Targets")
    for head in ("", "measured", "target", "what"):
        targets.add_column(head, no_wrap=head != "what")
    for target in result.targets:
        colour = colours[target.met]
        value, wanted = measured(target)
        targets.add_row(styled((verdict(target), colour)), value, wanted, target.name)
    if result.targets:
        console.print(targets)
    rows = output.table("Times")
    columns = [column for column in COLUMNS if any(column.of(row) for row in result.rows)]
    for column in columns:
        rows.add_column(column.head)
    for row in result.rows:
        rows.add_row(*(column.of(row) for column in columns))
    console.print(rows)
    console.print(f"\n{machine_line(result.machine)}", soft_wrap=True)
    for note in result.notes:
        console.print(note, soft_wrap=True)
