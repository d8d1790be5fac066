"""List the runs in a folder: how far, how good, how fast, and the shape of the loss."""

from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from keysift.core.config import config
from keysift.core.errors import DataError
from keysift.core.shown import shown
from keysift.runs.summary import Summary


@config
class Args:
    folder: Annotated[Path, tyro.conf.Positional] = Path("runs")
    """Where to look; a run itself is fine too."""
    json: bool = False
    """Print JSON."""


def run(args: Args) -> None:
    from keysift.cli import output
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
        output.print_plain(f"no runs in {args.folder}; start one: keysift train --minutes 2 --out {args.folder}/first")
        return
    output.console().print(runs_table(tuple(found)))


def runs_table(found: tuple[Summary, ...]) -> Table:
    from keysift.cli import output
    from keysift.runs.summary import sparkline

    table = output.table()
    for column in ("run", "model", "data", "state", "step", "parameters", "loss", "validation", "tokens/s"):
        table.add_column(column, justify="left" if column in ("run", "model", "data", "state") else "right")
    table.add_column("loss curve", no_wrap=True)
    for one in found:
        figures = (one.loss, one.val_loss)
        loss, validation = ("" if figure is None else f"{figure:.4f}" for figure in figures)
        speed = "" if one.tokens_per_second is None else f"{one.tokens_per_second:,.0f}"
        size, step = f"{one.parameters:,}", f"{one.step}/{one.steps}" if one.steps else str(one.step)
        words = map(shown, (one.path, one.arch, one.data, one.state))
        table.add_row(*words, step, size, loss, validation, speed, sparkline(one.losses))
    return table
