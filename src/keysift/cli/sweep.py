"""Train a grid of runs over any fields, several at a time if you like; run it again to finish what was interrupted."""

from dataclasses import field
from pathlib import Path

from keysift.core.config import config
from keysift.core.errors import ConfigError
from keysift.train.config import TrainConfig


@config
class Args:
    over: tuple[str, ...]
    """Axes of the grid, e.g. --over rate=0.001,0.01,0.1 seed=0,1"""
    out: Path
    """Folder of the sweep: a run directory each, sweep.json and sweep.html."""
    processes: int = 1
    """Runs at a time."""
    train: TrainConfig = field(default_factory=TrainConfig)


def run(args: Args) -> None:
    from keysift.cli import output
    from keysift.cli.runs import runs_table
    from keysift.train.run import write_json, write_text
    from keysift.train.summary import Summary
    from keysift.train.sweep import grid, sweep
    from keysift.web.curves import curves_page

    if args.processes < 1:
        raise ConfigError(f"processes must be at least 1, got {args.processes}")
    runs = grid(args.train, args.over)

    def told(one: Summary) -> None:
        output.print_plain(f"{one.path}: {one.state} at step {one.step}, loss {one.loss}")

    found = sweep(runs, args.out, processes=args.processes, told=told)
    named = dict(zip(runs, found, strict=True))
    results = [{"run": name, "loss": s.loss, "val_loss": s.val_loss, "state": s.state} for name, s in named.items()]
    write_json(args.out / "sweep.json", results)
    title, losses = f"Sweep over {', '.join(args.over)}", {name: s.losses for name, s in named.items()}
    write_text(args.out / "sweep.html", curves_page(title, losses))
    output.console().print(runs_table(tuple(found)))
    output.print_plain(f"curves: {(args.out / 'sweep.html').resolve().as_uri()}")
