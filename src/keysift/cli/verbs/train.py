"""Train a model on text. The run directory can be resumed, listed, sampled from and loaded."""

from dataclasses import field, replace
from pathlib import Path
from typing import Annotated

import tyro

from keysift.cli.flags.model_choice import Choice, chosen_model, flag_value
from keysift.core.config import config
from keysift.core.errors import ConfigError
from keysift.models.model_type import CONFIG, read_keysift_config
from keysift.runs.directory import Run
from keysift.train.config import TrainConfig, check_duration
from keysift.train.settings import read_toml


@config
class Args:
    choice: Choice = field(default_factory=Choice)
    match: str | None = None
    """Choose the width so that the model has about as many parameters as this run, model or preset."""
    train: Annotated[TrainConfig, tyro.conf.AvoidSubcommands] = field(default_factory=TrainConfig)
    out: Path | None = None
    """Directory of a new run."""
    resume: Path | None = None
    """Resume the run in this directory. Other flags change its config, where possible."""
    config: Path | None = None
    """A TOML file with the names of the flags. Flags take precedence."""
    dry_run: bool = False
    """Print what would be trained and its estimated cost, without training."""
    world: int | None = None
    """With --dry-run: plan the run for this many GPUs of the type --device (a100, h100 or b200). The defaults are the
    paper's: 2^38 tokens, steps of 2^22, sequences of 4,096, the vocabulary of GPT-2."""
    mfu: float = 0.4
    """With --world: the fraction of the peak FLOP/s that training is assumed to reach."""
    quiet: bool = False
    """Show no progress."""


def defaults(argv: list[str]) -> Args:
    """Defaults of the flags: from the run to resume, the config file or the initial model, then the chosen model."""
    resume, file, init = (flag_value(argv, flag) for flag in ("--resume", "--config", "--init"))
    if resume is not None and (file is not None or init is not None):
        raise ConfigError("--resume uses the config of its run; drop --config and --init, and pass changes as flags")
    base = TrainConfig()
    if resume is not None:
        Run(Path(resume)).read_train_json()  # refuse a folder without a run before torch is imported
        from keysift.train.manifest import read_manifest

        base = read_manifest(Run(Path(resume))).config
    elif file is not None:
        base = read_toml(Path(file), None if init is None else Path(init))
    elif init is not None:
        read_keysift_config(Path(init) / CONFIG)
        from keysift.train.init import config_from_model

        base = config_from_model(Path(init))
    elif flag_value(argv, "--world") is not None:
        from keysift.train.plan import PAPER

        base = TrainConfig(**PAPER)
    return Args(train=replace(base, model=chosen_model(argv, base.model)))


def run(args: Args) -> None:
    if args.match is not None:
        args = replace(args, train=_matched(args))
    if args.world is not None and (not args.dry_run or args.resume is not None):
        raise ConfigError(
            "--world plans a new run on a cluster; add --dry-run and drop --resume, or train under torchrun"
        )
    if args.dry_run:
        _dry_run(args)
        return
    if (args.out is None) == (args.resume is None):
        raise ConfigError("pass --out DIRECTORY for a new run, or --resume DIRECTORY to resume a run")
    if args.resume is None:
        check_duration(args.train)
        _check_data(args.train.data)
    from keysift.train.loop import train

    where = args.out or args.resume
    assert where is not None
    train(args.train, where, resume=args.resume is not None, show=not args.quiet)


def _check_data(source: str) -> None:
    """Refuse a missing text before torch is imported. Existing folders are searched once, later."""
    if ":" not in source and not Path(source).expanduser().exists():
        from keysift.data.sources import SOURCES, find_source

        if source not in SOURCES:
            find_source(source)


def _matched(args: Args) -> TrainConfig:
    from keysift.cli.terminal import output
    from keysift.train.preflight import match_parameters

    if args.resume is not None:
        raise ConfigError("--match sets the size of a new model, but a resumed run keeps its size; drop one of them")
    assert args.match is not None
    config, message = match_parameters(args.train, args.match)
    output.print_note(message)
    return config


def _dry_run(args: Args) -> None:
    from keysift.cli.terminal import output

    table = output.table("Estimate of this run")
    table.add_column("", no_wrap=True)
    table.add_column("")
    for name, text in estimate_rows(args).items():
        table.add_row(name, text)
    output.console().print(table)


def estimate_rows(args: Args) -> dict[str, str]:
    """Rows of the table of --dry-run."""
    from keysift.train.preflight import estimate

    if args.world is None:
        return estimate(args.train, resume=args.resume, show=not args.quiet)
    from keysift.models.presets import VOCABULARY
    from keysift.train.plan import plan
    from keysift.train.preflight import vocabulary

    vocab_size = VOCABULARY if args.train.tokenizer is None else vocabulary(args.train, show=not args.quiet)
    return plan(args.train, world=args.world, mfu=args.mfu, vocab_size=vocab_size)
