"""Train a list or a grid of runs. Running the same command again resumes an interrupted sweep."""

from dataclasses import field, replace
from pathlib import Path
from typing import Annotated

import tyro

from keysift.cli.flags.model_choice import Choice, chosen_model
from keysift.cli.flags.place import Place
from keysift.core.config import config
from keysift.core.errors import ConfigError, TrainingError
from keysift.train.config import TrainConfig


@config
class Args:
    out: Path
    """Directory for the run directories, sweep.json and sweep.html."""
    over: tuple[str, ...] = ()
    """Axes of the grid, e.g. --over lr=0.001,0.01,0.1 seed=0,1"""
    each: tuple[str, ...] = ()
    """List of settings, crossed with the grid, e.g. --each "arch=multiscreen psi=4" "arch=transformer width=64" """
    processes: int = 1
    """Runs to train in parallel here; they share the cores."""
    place: Place = field(default_factory=Place)
    cores: int = 1
    """Cores per run on Ray."""
    quiet: bool = False
    """Show no progress."""
    choice: Choice = field(default_factory=Choice)
    train: Annotated[TrainConfig, tyro.conf.AvoidSubcommands] = field(default_factory=TrainConfig)


def defaults(argv: list[str]) -> Args:
    """Default settings for the model that the command line chooses."""
    return Args(out=Path(), train=replace(TrainConfig(), model=chosen_model(argv, TrainConfig().model)))


def run(args: Args) -> None:
    if args.place.on == "ray" and args.processes != 1:
        raise ConfigError("--processes is for runs here; on Ray, --cores says how many cores a run uses")
    if args.processes < 1:
        raise ConfigError(f"processes must be at least 1, got {args.processes}")
    if not args.over and not args.each:
        raise ConfigError("nothing to sweep over; add --over lr=0.01,0.1 or --each 'psi=4' 'psi=6'")
    from keysift.sweep.plan import plan_runs

    planned = plan_runs(args.train, args.each, args.over)
    from keysift.cli.terminal import output
    from keysift.cli.terminal.run_table import print_comparison
    from keysift.core.disk import write_atomic, write_json
    from keysift.runs.compare import compare
    from keysift.sweep.drive import sweep
    from keysift.web.report.sweep_page import sweep_page

    if args.place.on == "ray":
        from keysift.data.cluster import connect
        from keysift.sweep.on_ray import RayLauncher

        with connect(args.place.address) as ray:
            launcher = RayLauncher(ray, args.out, cores=args.cores)
            outcomes = sweep(planned, args.out, launcher=launcher, show=not args.quiet)
    else:
        outcomes = sweep(planned, args.out, processes=args.processes, show=not args.quiet)
    runs = {outcome.name: outcome.summary for outcome in outcomes if outcome.summary is not None}
    results = [
        {"run": outcome.name, "state": outcome.state}
        | ({"loss": summary.loss, "val_loss": summary.val_loss} if (summary := outcome.summary) else {})
        for outcome in outcomes
    ]
    write_json(args.out / "sweep.json", results)
    comparison = compare(list(runs.values()), list(runs))
    listed = ["a list of settings"] if len(args.each) > 1 else list(args.each)
    title = f"Sweep over {' and '.join([*listed, *args.over])}"
    write_atomic(args.out / "sweep.html", sweep_page(title, comparison))
    print_comparison(comparison, output.console())
    output.print_plain(f"report: {(args.out / 'sweep.html').resolve().as_uri()}")
    failed = [outcome for outcome in outcomes if outcome.error]
    if failed:
        errors = "; ".join(f"{outcome.name}: {outcome.error}" for outcome in failed)
        raise TrainingError(
            f"{len(failed)} of {len(outcomes)} runs failed ({errors}); run the same command again to retry them"
        )
    unfinished = sum(outcome.state in ("stopped", "not started", "running") for outcome in outcomes)
    if unfinished:
        output.print_plain(f"{unfinished} of {len(outcomes)} runs are not finished; the same command resumes them")
