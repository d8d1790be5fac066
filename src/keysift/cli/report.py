"""Make one page of runs: what was compared, curves, retrieval, windows, samples, each with its command and numbers."""

from pathlib import Path
from typing import Annotated

import tyro

from keysift.core.config import config


@config
class Args:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run directories, or folders that hold some."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report.html")
    """Where the page goes."""
    title: str = "Report"
    measure: bool = False
    """First make the records that are missing and take seconds; what is measured is kept with the run."""
    records: tuple[Path, ...] = ()
    """More folders with records, as keysift eval --out writes them."""
    sweep: tuple[Path, ...] = ()
    """Folders of sweeps over learning rates; one that the runs lie in is found by itself."""
    scaling: tuple[Path, ...] = ()
    """Folders of runs of several sizes."""
    bench: tuple[Path, ...] = ()
    """Files of keysift bench models --out."""


def run(args: Args) -> int:
    from keysift.cli import output
    from keysift.cli.command import spelled
    from keysift.cli.gather import gather, paths_of
    from keysift.cli.missing import measure_missing
    from keysift.core.disk import write_whole
    from keysift.core.errors import ConfigError
    from keysift.web.report_page import report_page

    if not args.runs:
        raise ConfigError("name at least one run, e.g. keysift report runs/first -o report.html")
    paths = paths_of(args.runs)
    try:
        notes = measure_missing(paths) if args.measure else []
    except KeyboardInterrupt:
        output.print_note("stopped; what was measured is kept, and the same command resumes")
        return 130
    found = gather(
        paths,
        title=args.title,
        command=spelled("report", args),
        records=args.records,
        sweeps=args.sweep,
        sizes=args.scaling,
        benchmarks=args.bench,
        notes=notes,
    )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(args.out, report_page(found))
    for note in found.notes:
        output.print_note(f"note: {note}")
    output.print_plain(f"report: {args.out.resolve().as_uri()}")
    return 0
