"""See the difference: one key in different company, through every mechanism, as a table and a page."""

from pathlib import Path

from keysift.core.config import config
from keysift.evaluate.record import ContextExperiment


@config
class Args:
    out: Path = Path("out/demo.html")
    """Where the page goes."""
    json: bool = False
    """Print the record as JSON instead of the table."""


def run(args: Args) -> None:
    from keysift.cli import output
    from keysift.evaluate.context import context_experiment
    from keysift.web.context_page import context_page

    experiment = context_experiment()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(context_page(experiment))
    if args.json:
        output.print_json(experiment)
        return
    _table(experiment)
    console = output.console()
    alone = sum(row.absolute for row in experiment.rows)
    console.print(
        "[bold red]*[/bold red] moved although its own score did not: "
        "that weight compares keys, it does not judge one.\n"
        f"{alone} of {len(experiment.rows)} mechanisms judge each key alone. 0 is exactly zero, .000 is not.",
        soft_wrap=True,
    )
    console.print(f"\nThe same as charts: {args.out.resolve().as_uri()}", soft_wrap=True)


def _table(experiment: ContextExperiment) -> None:
    from keysift.cli import output
    from keysift.web.context_page import number

    table = output.table("The same key in different company")
    table.add_column("mechanism", no_wrap=True)
    for context in experiment.contexts:
        table.add_column(f"{context.title}\n{', '.join(f'{score:g}' for score in context.scores)}")
    for row in experiment.rows:
        cells = (
            " ".join(
                f"[bold red]{number(w)}*[/bold red]" if mark else number(w)
                for w, mark in zip(weights, moved, strict=True)
            )
            for weights, moved in zip(row.weights, row.moved, strict=True)
        )
        table.add_row(row.mechanism, *cells)
    output.console().print(table)
