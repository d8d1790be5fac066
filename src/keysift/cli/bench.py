"""Measure how fast the kernel or training is, or show what was measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from keysift.cli import bench_train
from keysift.core.config import config, load, save
from keysift.core.errors import DataError

if TYPE_CHECKING:
    from keysift.evaluate.performance import Performance


@config
class Screening:
    """The screening kernel against the dense definition, against softmax, and against its targets."""

    quick: bool = False
    """A minute instead of several: fewer turns and shorter sequences, so no target counts as met or missed."""
    json: bool = False
    """Print JSON."""
    out: Path | None = None
    """Also write the JSON here, and the plot beside it as SVG."""


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
        | Annotated[bench_train.Train, tyro.conf.subcommand("train")]
        | Annotated[Show, tyro.conf.subcommand("show")]
    )


def run(args: Args) -> None:
    if isinstance(args.do, Show):
        _show(args.do)
    elif isinstance(args.do, bench_train.Train):
        bench_train.measure(args.do)
    else:
        _measure(args.do)


def _measure(do: Screening) -> None:
    from rich.console import Console

    from keysift.cli import output
    from keysift.evaluate import screening_speed
    from keysift.web.performance_page import plot

    # Progress goes to stderr: --json prints nothing but JSON.
    progress = Console(stderr=True, highlight=False)
    sizes = screening_speed.QUICK if do.quick else screening_speed.FULL
    found = screening_speed.measure(
        sizes,
        command="keysift bench screening" + (" --quick" if do.quick else ""),
        say=lambda line: progress.print(line, markup=False, soft_wrap=True),
    )
    if do.out is not None:
        do.out.parent.mkdir(parents=True, exist_ok=True)
        save(found, do.out)
        do.out.with_suffix(".svg").write_text(plot(found))
    if do.json:
        output.print_json(found)
    else:
        _table(found)


def _show(do: Show) -> None:
    from keysift.cli import output
    from keysift.evaluate.performance import Performance
    from keysift.web.performance_page import markdown, plot

    if not do.result.is_file():
        raise DataError(f"no result at {do.result}; write one with keysift bench screening --out {do.result}")
    found = load(Performance, do.result)
    if do.markdown:
        output.print_plain(markdown(found))
    elif do.svg:
        output.print_plain(plot(found))
    else:
        _table(found)


def _table(found: "Performance") -> None:
    from keysift.cli import output
    from keysift.web.performance_page import number, speed, verdict

    console = output.console()
    targets = output.table("Targets")
    for head in ("", "measured", "target", "what"):
        targets.add_column(head, no_wrap=head != "what")
    colours = {True: "green", False: "red", None: "dim"}
    for target in found.targets:
        colour = colours[target.met]
        targets.add_row(
            f"[{colour}]{verdict(target)}[/{colour}]",
            f"{number(target.value)} {target.unit}",
            f"{target.bound} {target.target:g} {target.unit}",
            target.name,
        )
    console.print(targets)
    rows = output.table("Times")
    for head in ("T", "tiles", "window", "r", "step", "ours", "against", "speedup"):
        rows.add_column(head)
    for row in found.rows:
        rows.add_row(*speed(row))
    console.print(rows)
    machine = found.machine
    console.print(
        f"\n{machine.cpu}, {machine.threads} threads, {machine.instruction_set}, torch {machine.torch}, "
        f"load {machine.load:g} before; sgemm {machine.sgemm_gflops:g} GFLOP/s, reads {machine.read_gb_per_s:g} GB/s",
        soft_wrap=True,
    )
    for note in found.notes:
        console.print(note, markup=False, soft_wrap=True)
