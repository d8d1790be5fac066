"""List the runs in a folder, best first, with settings that differ, progress, loss and speed."""

from pathlib import Path
from typing import Annotated

import tyro

from keysift.core.config import config
from keysift.core.errors import DataError


@config
class Args:
    folder: Annotated[Path, tyro.conf.Positional] = Path("runs")
    """A folder with runs, or a run."""
    json: bool = False
    """Print JSON."""


def run(args: Args) -> None:
    from keysift.cli.terminal import output
    from keysift.cli.terminal.run_table import print_comparison
    from keysift.models.model_type import import_advice
    from keysift.runs.compare import compare
    from keysift.runs.summary import find_runs, summary

    if args.folder.exists() and not args.folder.is_dir():
        raise DataError(f"{args.folder} is not a folder; name a folder with runs, or a run")
    runs = []
    for path in find_runs(args.folder):
        try:
            runs.append(summary(path))
        except DataError as error:
            output.print_note(f"skipped: {error}")
    if args.json:
        output.print_json(tuple(runs))
        return
    if not runs:
        advice = import_advice(args.folder)
        if advice is not None:
            raise DataError(advice)
        output.print_plain(f"no runs in {args.folder}; start one: keysift train --minutes 2 --out {args.folder}/first")
        return
    print_comparison(compare(runs, [_name(Path(run.path), args.folder) for run in runs]), output.console())


def _name(run: Path, folder: Path) -> str:
    return run.absolute().name if run == folder else str(run.relative_to(folder))
