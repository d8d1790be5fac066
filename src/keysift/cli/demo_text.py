"""`keysift demo --text`: one key in different company, through every mechanism, then a model that learns to write."""

import itertools
import shlex
from collections.abc import Iterator
from pathlib import Path

from keysift.core.errors import RangeError
from keysift.core.shown import styled
from keysift.evaluate.record import ContextExperiment


def text_demo(out: Path, *, seconds: float, json: bool) -> None:
    """Writes the page `out`; a run goes beside it."""
    from keysift.cli import output
    from keysift.evaluate.context import context_experiment
    from keysift.web.context_page import context_page

    if not 0 <= seconds < float("inf"):
        raise RangeError(f"--seconds must be a number of seconds, got {seconds}; 0 trains nothing")
    experiment = context_experiment()
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(context_page(experiment))
    if json:
        output.print_json(experiment)
        return
    _table(experiment)
    console = output.console()
    alone = sum(row.absolute for row in experiment.rows)
    console.print(
        styled(
            ("*", "bold red"),
            " moved although its own score did not: that weight compares keys, it does not judge one.\n"
            f"{alone} of {len(experiment.rows)} mechanisms judge each key alone. 0 is exactly zero.",
        ),
        soft_wrap=True,
    )
    if seconds:
        _train(out, seconds, experiment)
    console.print(f"\nThe same as a page: {out.resolve().as_uri()}", soft_wrap=True)


def _train(out: Path, seconds: float, experiment: ContextExperiment) -> None:
    from keysift.cli import output
    from keysift.train.demo import demo_training
    from keysift.web.context_page import context_page
    from keysift.web.training_section import training_section

    console = output.console()
    run = next(path for path in numbered(out.parent / "demo-run") if not path.exists())
    console.print(f"\nNow a small Multiscreen learns Python's standard library for {seconds:.0f} seconds.")
    story = demo_training(seconds, run)
    out.write_text(context_page(experiment, training_section(story)))
    console.print(f"loss {story.losses[0]:.2f} -> {story.losses[-1]:.2f} nats a byte in {len(story.losses)} steps")
    for title, text in (("untrained", story.before), ("trained", story.after)):
        console.print(styled("\n", (title, "bold")))
        output.print_plain(text)
    console.print(styled("\n", ("Try next", "bold")))
    where = shlex.quote(str(run))
    output.print_plain(f"keysift train --resume {where} --minutes 5")
    output.print_plain(f'keysift generate {where} --prompt "def " --max-new-tokens 200')
    output.print_plain("keysift train --arch multiscreen --psi 6 --data YOUR.txt --minutes 2 --out runs/first")


def numbered(path: Path) -> Iterator[Path]:
    """The path, then path-2, path-3, ...: what an earlier demo made is the user's by now."""
    return (path if number == 1 else path.with_name(f"{path.name}-{number}") for number in itertools.count(1))


def _table(experiment: ContextExperiment) -> None:
    from keysift.cli import output
    from keysift.web.number import number

    table = output.table("The same key in different company")
    table.add_column("mechanism", no_wrap=True)
    for context in experiment.contexts:
        rows = (", ".join(f"{score:g}" for score in row) for row in (context.scores, context.cosines))
        table.add_column(f"{context.title}\n{next(rows)}\n(cosines {next(rows)})")
    for row in experiment.rows:
        cells = (
            styled(" ").join(
                styled((f"{number(w)}*", "bold red") if mark else number(w))
                for w, mark in zip(weights, moved, strict=True)
            )
            for weights, moved in zip(row.weights, row.moved, strict=True)
        )
        table.add_row(row.mechanism, *cells)
    output.console().print(table)
