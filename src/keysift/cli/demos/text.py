"""`keysift demo --text`: the same key with different competitors in every mechanism, then a model trained on text."""

import itertools
import shlex
from collections.abc import Iterator
from pathlib import Path

from keysift.core.errors import RangeError
from keysift.core.terminal import styled
from keysift.records.competitors import ContextExperiment

PROMPT, SAMPLE_TOKENS = "def ", 160


def text_demo(out: Path, *, seconds: float, json: bool) -> None:
    """Print the experiment and write it to the page `out`. With `seconds`, also train a run next to it."""
    from keysift.cli.flags.out_file import make_folder_of
    from keysift.cli.terminal import output
    from keysift.verify.competitors import context_experiment
    from keysift.web.demo.page import demo_page

    if not 0 <= seconds < float("inf"):
        raise RangeError(f"--seconds must be a number of seconds, got {seconds}; 0 skips training")
    experiment = context_experiment()
    make_folder_of(out)
    out.write_text(demo_page(experiment), encoding="utf-8")
    if json:
        output.print_json(experiment)
        return
    _table(experiment)
    console = output.console()
    absolute = sum(row.absolute for row in experiment.rows)
    console.print(
        styled(
            ("*", "bold red"),
            " changed although the key's own score did not: the weight depends on the competing keys.\n"
            f"In {absolute} of {len(experiment.rows)} mechanisms it depends on the key alone. 0 is exactly zero.",
        ),
        soft_wrap=True,
    )
    if seconds:
        _train(out, seconds, experiment)
    console.print(f"\nAs a page: {out.resolve().as_uri()}", soft_wrap=True)


def _train(out: Path, seconds: float, experiment: ContextExperiment) -> None:
    from keysift.cli.terminal import output
    from keysift.models import text_model
    from keysift.runs.summary import summary
    from keysift.train.demo import text_run, untrained_model
    from keysift.train.loop import train
    from keysift.train.monitor import sample
    from keysift.web.demo.page import demo_page
    from keysift.web.demo.training import training_section

    console = output.console()
    run = next(path for path in numbered(out.parent / "demo-run") if not path.exists())
    console.print(f"\nTraining a small Multiscreen on Python's standard library for {seconds:.0f} seconds.")
    config = text_run(seconds)
    before = sample(untrained_model(config), PROMPT, SAMPLE_TOKENS)
    train(config, run)
    trained = text_model.open(run)
    after = sample(trained, PROMPT, SAMPLE_TOKENS)
    windows = [layer["window"].tolist() for layer in trained.model.scalars()]
    losses = summary(run).losses
    out.write_text(demo_page(experiment, training_section(summary(run), windows, before, after)), encoding="utf-8")
    console.print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f} nats per byte in {len(losses)} steps")
    for title, text in (("untrained", before), ("trained", after)):
        console.print(styled("\n", (title, "bold")))
        output.print_plain(text)
    console.print(styled("\n", ("Try next", "bold")))
    where = shlex.quote(str(run))
    output.print_plain(f"keysift train --resume {where} --minutes 5")
    output.print_plain(f'keysift generate {where} --prompt "def " --max-new-tokens 200')
    output.print_plain("keysift train --arch multiscreen --psi 6 --data YOUR.txt --minutes 2 --out runs/first")


def numbered(path: Path) -> Iterator[Path]:
    """The path, then path-2, path-3, ..., because results of an earlier demo are never overwritten."""
    return (path if number == 1 else path.with_name(f"{path.name}-{number}") for number in itertools.count(1))


def _table(experiment: ContextExperiment) -> None:
    from keysift.cli.terminal import output
    from keysift.core.number import number

    table = output.table("The same key with different competitors")
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
