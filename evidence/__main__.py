"""Run studies and write their pages: python -m evidence run|repeat|pages|table|headline."""

import sys
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from evidence.pages.headline import headline
from evidence.pages.render import render, table
from evidence.study import ROOT, find_studies, read_study
from keysift.cli.flags.place import Place
from keysift.core.config import config
from keysift.core.errors import ConfigError, KeysiftError, TrainingError
from keysift.core.terminal import escape_text

Name = tyro.conf.Positional[str]


@config
class Run:
    """Train, evaluate and record every run of a study that has no record yet."""

    study: Name
    """Folder of the study, e.g. one-hop."""
    runs_dir: Path | None = None
    """Where run directories are written; sweeps/STUDY by default."""
    processes: int = 1
    """Runs at a time here; they share the cores."""
    place: Place = field(default_factory=Place)
    cores: int = 1
    """Cores per run on Ray."""
    quiet: bool = False
    """Show no progress."""


@config
class Repeat:
    """Train a recorded run again and compare it with its record."""

    study: Name
    """Folder of the study."""
    run: Name
    """Name of the recorded run."""
    runs_dir: Path | None = None
    """Where the run directory is written; sweeps/STUDY-repeats by default."""
    quiet: bool = False
    """Show no progress."""


@config
class Pages:
    """Write the page and figure of every study, and the table of claims."""


@config
class Table:
    """Print the table of claims as Markdown."""


@config
class Headline:
    """Print the three numbers of the README as Markdown."""


Command = (
    Annotated[Run, tyro.conf.subcommand("run")]
    | Annotated[Repeat, tyro.conf.subcommand("repeat")]
    | Annotated[Pages, tyro.conf.subcommand("pages")]
    | Annotated[Table, tyro.conf.subcommand("table")]
    | Annotated[Headline, tyro.conf.subcommand("headline")]
)


def parse(argv: list[str]) -> Run | Repeat | Pages | Table | Headline:
    flags = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes, tyro.conf.FlagCreatePairsOff)
    command: Run | Repeat | Pages | Table | Headline = tyro.cli(
        Command,
        prog="python -m evidence",
        description=__doc__,
        args=argv,
        config=flags,
    )
    return command


def main(argv: list[str]) -> None:
    command = parse(argv)
    if isinstance(command, Run):
        run(command)
    elif isinstance(command, Repeat):
        repeat(command)
    elif isinstance(command, Pages):
        for name, text in render().items():
            (ROOT / name).write_text(text)
    elif isinstance(command, Table):
        _print(table(find_studies()))
    else:
        _print(headline())


def run(command: Run) -> None:
    from evidence.run_study import run_study

    if command.processes < 1:
        raise ConfigError(f"--processes must be at least 1, got {command.processes}")
    study = read_study(ROOT / command.study)
    runs_dir = command.runs_dir or Path("sweeps") / study.name
    run_missing = partial(run_study, study, runs_dir, show=not command.quiet, log=_print)
    if command.place.on == "ray":
        from keysift.data.cluster import connect
        from keysift.sweep.on_ray import RayLauncher

        with connect(command.place.address) as ray:
            launcher = RayLauncher(ray, runs_dir, cores=command.cores)
            records, outcomes = run_missing(launcher=launcher)
    else:
        records, outcomes = run_missing(processes=command.processes)
    for record in records.values():
        loss = "" if record.val_loss is None else f", validation loss {record.val_loss:.4f}"
        accuracy = "" if record.accuracy is None else f", accuracy {record.accuracy:.4f}"
        _print(f"{record.name}: {record.state} at step {record.step}{loss}{accuracy}, {record.seconds:.0f} s")
    _print(f"{len(records)} runs in {study.records}; python -m evidence pages writes the pages")
    failed = [outcome for outcome in outcomes if outcome.error]
    if failed:
        errors = "; ".join(f"{outcome.name}: {outcome.error}" for outcome in failed)
        raise TrainingError(f"{len(failed)} runs of the study failed ({errors}); run it again to finish")


def repeat(command: Repeat) -> None:
    from evidence.run_study import repeat_run

    study = read_study(ROOT / command.study)
    runs_dir = command.runs_dir or Path("sweeps") / f"{study.name}-repeats"
    result = repeat_run(study, command.run, runs_dir, show=not command.quiet)
    _print("interrupted; the same command resumes it" if result is None else str(result))


def _print(text: str) -> None:
    sys.stdout.write(escape_text(text.rstrip("\n")) + "\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeysiftError as error:
        sys.exit(escape_text(str(error)))
