"""Train a model on any text, into a run directory that can be resumed, listed, sampled and loaded."""

from dataclasses import field, replace
from pathlib import Path
from typing import Annotated

import tyro

from keysift.cli.choice import Choice, chosen, value
from keysift.core.config import config
from keysift.core.errors import ConfigError
from keysift.train.config import TrainConfig
from keysift.train.config_file import read_toml


@config
class Args:
    choice: Choice = field(default_factory=Choice)
    match: str | None = None
    """Give the model the width at which it has about as many parameters as this run, model or preset, and say so."""
    train: Annotated[TrainConfig, tyro.conf.AvoidSubcommands] = field(default_factory=TrainConfig)
    out: Path | None = None
    """Directory of a new run."""
    resume: Path | None = None
    """Resume the run in this directory; other flags change its config where that is possible."""
    config: Path | None = None
    """A TOML file with the same names as the flags; flags win."""
    dry_run: bool = False
    """Say what the run would be and what it would cost, and stop."""
    quiet: bool = False
    """Show no progress."""


def defaults(argv: list[str]) -> Args:
    """What flags start from: the run to resume, a model to start from, a file, or nothing; then the chosen model."""
    resume, file, init = (value(argv, flag) for flag in ("--resume", "--config", "--init"))
    if resume is not None and (file is not None or init is not None):
        raise ConfigError(
            "--resume has the config of its run; drop --config and --init, and give what should change as flags"
        )
    base = TrainConfig()
    if resume is not None:
        from keysift.runs.directory import Run
        from keysift.train.facts import read_facts

        base = read_facts(Run(Path(resume))).config
    elif file is not None:
        base = read_toml(Path(file), None if init is None else Path(init))
    elif init is not None:
        from keysift.train.init import starting_from

        base = starting_from(Path(init))
    return Args(train=replace(base, model=chosen(argv, base.model)))


def run(args: Args) -> None:
    if args.match is not None:
        args = replace(args, train=_matched(args))
    if args.dry_run:
        _dry_run(args)
        return
    if (args.out is None) == (args.resume is None):
        raise ConfigError("say where: --out DIRECTORY for a new run, or --resume DIRECTORY to resume one")
    from keysift.train.loop import train

    where = args.out or args.resume
    assert where is not None
    train(args.train, where, resume=args.resume is not None, show=not args.quiet)


def _matched(args: Args) -> TrainConfig:
    from keysift.cli import output
    from keysift.train.match import matched

    if args.resume is not None:
        raise ConfigError("--match chooses the size of a new model, and a resumed run keeps its own; drop one of them")
    assert args.match is not None
    found, said = matched(args.train, args.match)
    output.print_note(said)
    return found


def _dry_run(args: Args) -> None:
    from keysift.cli import output
    from keysift.train.estimate import estimate

    table = output.table("This run, if it were started")
    table.add_column("", no_wrap=True)
    table.add_column("")
    for name, told in estimate(args.train, resume=args.resume, show=not args.quiet).items():
        table.add_row(name, told)
    output.console().print(table)
