"""Train a model on any text, into a run directory that can be resumed, listed, sampled and loaded."""

from dataclasses import field
from pathlib import Path

from keysift.core.config import config
from keysift.core.errors import ConfigError
from keysift.train.config import TrainConfig
from keysift.train.config_file import read_toml


@config
class Args:
    train: TrainConfig = field(default_factory=TrainConfig)
    out: Path | None = None
    """Directory of a new run."""
    resume: Path | None = None
    """Go on with the run in this directory; flags given besides change its config where that is possible."""
    config: Path | None = None
    """A TOML file with the same names as the flags; flags given besides win."""
    dry_run: bool = False
    """Say what the run would be and what it would cost, and stop."""
    quiet: bool = False
    """Show no progress."""


def defaults(argv: list[str]) -> Args:
    """What flags start from: the config of the run to resume, or a file, or nothing."""
    resume, file = _value(argv, "--resume"), _value(argv, "--config")
    if resume is not None and file is not None:
        raise ConfigError("--resume has the config of its run; drop --config, and give what should change as flags")
    if resume is not None:
        from keysift.runs.directory import Run
        from keysift.train.facts import read_facts

        return Args(train=read_facts(Run(Path(resume))).config)
    return Args() if file is None else Args(train=read_toml(Path(file)))


def _value(argv: list[str], flag: str) -> str | None:
    for at, word in enumerate(argv):
        if word == flag and at + 1 < len(argv):
            return argv[at + 1]
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return None


def run(args: Args) -> None:
    if args.dry_run:
        _dry_run(args)
        return
    if (args.out is None) == (args.resume is None):
        raise ConfigError("say where: --out DIRECTORY for a new run, or --resume DIRECTORY to go on with one")
    from keysift.train.loop import train

    where = args.out or args.resume
    assert where is not None
    train(args.train, where, resume=args.resume is not None, show=not args.quiet)


def _dry_run(args: Args) -> None:
    from keysift.cli import output
    from keysift.train.estimate import estimate

    table = output.table("This run, if it were started")
    table.add_column("", no_wrap=True)
    table.add_column("")
    for name, value in estimate(args.train).items():
        table.add_row(name, value)
    output.console().print(table)
