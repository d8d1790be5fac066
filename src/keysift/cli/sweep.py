"""Train a list or a grid of runs, several at a time if you like; run it again to finish what was interrupted."""

from dataclasses import field, replace
from pathlib import Path
from typing import Annotated

import tyro

from keysift.cli.choice import Choice, chosen
from keysift.core.config import config
from keysift.core.errors import ConfigError, TrainingError
from keysift.train.config import TrainConfig


@config
class Args:
    out: Path
    """Folder of the sweep: a run directory each, sweep.json and sweep.html."""
    over: tuple[str, ...] = ()
    """Axes of a grid, e.g. --over lr=0.001,0.01,0.1 seed=0,1"""
    each: tuple[str, ...] = ()
    """A list of settings, crossed with the grid, e.g. --each "arch=multiscreen psi=4" "arch=transformer width=64" """
    study: Path | None = None
    """A TOML file with contestants, grids and seeds (see recipes/evidence), instead of --over and --each."""
    records: Path | None = None
    """Of a study: a file that keeps a line for each run that is over; what it holds is not made again."""
    again: str | None = None
    """Of a study: the name of a recorded run, which is made a second time and compared with its record."""
    processes: int = 1
    """Runs at a time; they share the cores."""
    quiet: bool = False
    """Show no progress."""
    choice: Choice = field(default_factory=Choice)
    train: Annotated[TrainConfig, tyro.conf.AvoidSubcommands] = field(default_factory=TrainConfig)


def defaults(argv: list[str]) -> Args:
    return Args(out=Path(), train=replace(TrainConfig(), model=chosen(argv, TrainConfig().model)))


def run(args: Args) -> None:
    from keysift.cli import output
    from keysift.cli.comparison import print_comparison
    from keysift.core.disk import write_whole
    from keysift.runs.compare import compare
    from keysift.runs.directory import write_json
    from keysift.sweep.drive import sweep
    from keysift.sweep.plan import points
    from keysift.web.sweep_page import sweep_page

    if args.processes < 1:
        raise ConfigError(f"processes must be at least 1, got {args.processes}")
    if args.study is not None:
        _study(args)
        return
    if args.records is not None or args.again is not None:
        raise ConfigError("--records and --again are of a study; add --study FILE")
    if not args.over and not args.each:
        raise ConfigError("nothing to sweep over; add --over lr=0.01,0.1 or --each 'psi=4' 'psi=6'")
    outcomes = sweep(points(args.train, args.each, args.over), args.out, processes=args.processes, show=not args.quiet)
    made = {one.name: one.summary for one in outcomes if one.summary is not None}
    results = [
        {"run": one.name, "state": one.state}
        | ({"loss": one.summary.loss, "val_loss": one.summary.val_loss} if one.summary else {})
        for one in outcomes
    ]
    write_json(args.out / "sweep.json", results)
    found = compare(list(made.values()), list(made))
    title = f"Sweep over {', '.join((*args.each, *args.over))}"
    write_whole(args.out / "sweep.html", sweep_page(title, found))
    print_comparison(found, output.console())
    output.print_plain(f"curves: {(args.out / 'sweep.html').resolve().as_uri()}")
    failed = [one for one in outcomes if one.said]
    if failed:
        words = "; ".join(f"{one.name}: {one.said}" for one in failed)
        raise TrainingError(
            f"{len(failed)} of {len(outcomes)} runs failed ({words}); the others are kept, run it again to finish"
        )
    left = sum(one.state in ("stopped", "not started", "running") for one in outcomes)
    if left:
        output.print_plain(f"{left} of {len(outcomes)} runs are not finished; the same command resumes them")


def _study(args: Args) -> None:
    from keysift.cli import output
    from keysift.sweep.carry import carry_out, make_again
    from keysift.sweep.study import read_study

    assert args.study is not None
    if args.over or args.each or args.train != TrainConfig():
        raise ConfigError("a study says what is trained and how; drop --over, --each and the flags of train")
    kept = args.records or args.out / "records.jsonl"
    study = read_study(args.study)
    if args.again is not None:
        if args.processes > 1:
            raise ConfigError("--again makes one run; leave out --processes")
        found = make_again(study, args.again, args.out, kept, show=not args.quiet)
        output.print_plain("interrupted; the same command resumes it" if found is None else str(found))
        return
    known, made = carry_out(study, args.out, kept, processes=args.processes, show=not args.quiet, say=output.print_note)
    table = output.table(f"{len(known)} runs in {kept}")
    for title in ("run", "validation", "accuracy", "state", "step", "seconds"):
        table.add_column(title, overflow="fold")
    for one in known.values():
        figures = ["" if value is None else f"{value:.4f}" for value in (one.val_loss, one.accuracy)]
        table.add_row(one.name, *figures, one.state, str(one.step), f"{one.seconds:.0f}")
    output.console().print(table)
    failed = [one for one in made if one.said]
    if failed:
        words = "; ".join(f"{one.name}: {one.said}" for one in failed)
        raise TrainingError(f"{len(failed)} runs of the study failed ({words}); run it again to finish")
