"""Write a report of runs as one HTML page: settings, loss curves, retrieval, windows, samples and commands."""

from pathlib import Path
from typing import Annotated

import tyro

from keysift.core.config import config


@config
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run directories, or folders that contain run directories."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report.html")
    """File to write."""
    title: str = "Report"
    """Title of the page."""
    measure: bool = False
    """First run the missing evaluations that take only seconds, and store their records in the run directory."""
    records: tuple[Path, ...] = ()
    """More folders with records written by keysift eval --out."""
    sweep: tuple[Path, ...] = ()
    """Folders of learning-rate sweeps. The sweep that contains the runs is found automatically."""
    scaling: tuple[Path, ...] = ()
    """Folders with runs of models of several sizes."""
    bench: tuple[Path, ...] = ()
    """Files written by keysift bench models --out."""


def run(args: Args) -> int:
    from keysift.cli.flags.command_line import command_line
    from keysift.cli.flags.out_file import make_folder_of
    from keysift.cli.terminal import output
    from keysift.core.disk import write_atomic
    from keysift.core.errors import ConfigError
    from keysift.sweep.report import gather_report, run_directories

    if not args.runs:
        raise ConfigError("name at least one run, e.g. keysift report runs/first -o report.html")
    paths = run_directories(args.runs)
    from keysift.sweep.evaluate_runs import evaluate_missing
    from keysift.web.report.page import report_page

    try:
        notes = evaluate_missing(paths, on_start=_print_start) if args.measure else []
    except KeyboardInterrupt:
        output.print_note("interrupted; finished measurements are saved, and the same command resumes")
        return 130
    report = gather_report(
        paths,
        title=args.title,
        command=command_line("report", args),
        records=args.records,
        sweeps=args.sweep,
        sizes=args.scaling,
        benchmarks=args.bench,
        notes=notes,
    )
    make_folder_of(args.out)
    write_atomic(args.out, report_page(report))
    for note in report.notes:
        output.print_note(f"note: {note}")
    output.print_plain(f"report: {args.out.resolve().as_uri()}")
    return 0


def _print_start(path: Path, name: str) -> None:
    from keysift.cli.terminal import output

    output.print_note(f"{path}: {name}")
