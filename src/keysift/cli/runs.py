"""List the runs in a folder, best first: what differs between them, how far, how good, how fast."""

from pathlib import Path
from typing import Annotated

import tyro

from keysift.core.config import config
from keysift.core.errors import DataError


@config
class Args:
    folder: Annotated[Path, tyro.conf.Positional] = Path("runs")
    """Where to look; a run itself is fine too."""
    json: bool = False
    """Print JSON."""


def run(args: Args) -> None:
    from keysift.cli import output
    from keysift.cli.comparison import print_comparison
    from keysift.models.foreign import advice
    from keysift.runs.compare import compare
    from keysift.runs.summary import find_runs, summary

    found = []
    for path in find_runs(args.folder):
        try:
            found.append(summary(path))
        except DataError as error:
            output.print_note(f"left out: {error}")
    if args.json:
        output.print_json(tuple(found))
        return
    if not found:
        foreign = advice(args.folder)
        if foreign is not None:
            raise DataError(foreign)
        output.print_plain(f"no runs in {args.folder}; start one: keysift train --minutes 2 --out {args.folder}/first")
        return
    print_comparison(compare(found, [_name(Path(one.path), args.folder) for one in found]), output.console())


def _name(run: Path, folder: Path) -> str:
    return run.absolute().name if run == folder else str(run.relative_to(folder))
