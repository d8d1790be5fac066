"""Measure a model, or several runs: loss, retrieval, windows, relevance; stability, scaling, latency."""

from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from keysift.core.config import config

Model = Annotated[str, tyro.conf.Positional]
Folders = Annotated[tuple[Path, ...], tyro.conf.Positional]


@config
class Output:
    json: bool = False
    """Print the record as JSON."""
    csv: bool = False
    """Print the rows of the record as CSV."""
    out: Path | None = None
    """Folder for the record, its rows and its figure. The record of a run is kept in its folder evals if left out."""


@config
class Beyond:
    """How to run the model beyond its training length, besides as it was trained."""

    expand_windows: bool = False
    """Also with window expansion."""
    rope_factors: tuple[float, ...] = ()
    """Also with positions divided by each of these."""


@config
class Loss:
    """Loss and bits per byte on any text, in windows that overlap."""

    model: Model
    """A run, a checkpoint, a saved model, or a preset (untrained)."""
    text: str = "stdlib"
    """A file, folder, glob or source, as for keysift train --data."""
    tokens: int = 65_536
    """Tokens of the text to read at most."""
    context: int | None = None
    """Tokens of a window; the training length if left out."""
    stride: int | None = None
    """Tokens a window adds to the one before; half of the context if left out."""
    output: Output = field(default_factory=Output)


@config
class Positions:
    """Loss by position on long documents, up to many times the training length."""

    model: Model
    """A run, a checkpoint, a saved model, or a preset (untrained)."""
    text: str = "stdlib"
    """A file, folder, glob or source with long documents."""
    length: int | None = None
    """Tokens to read of each document; 16 times the training length if left out."""
    documents: int = 8
    """Documents to read at most."""
    beyond: Beyond = field(default_factory=Beyond)
    output: Output = field(default_factory=Output)


@config
class Retrieval:
    """Accuracy by context length and depth, with confidence intervals."""

    model: Model
    """A run, a checkpoint, a saved model, or a preset (untrained)."""
    task: Literal["abcdigits", "passkey", "mqar", "recall"] = "abcdigits"
    """recall is for models trained on it."""
    lengths: tuple[int, ...] = ()
    """Context lengths in tokens; if left out 512, 1024 and 2048, for recall 1 to 64 times the training length."""
    depths: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    """Where the needle stands, as a share of the context."""
    instances: int = 50
    """Texts of each cell."""
    seed: int = 0
    beyond: Beyond = field(default_factory=Beyond)
    output: Output = field(default_factory=Output)


@config
class Windows:
    """What every head has learned (window, acceptance) and what it accepts on a text."""

    model: Model
    """A run, a checkpoint, a saved model, or a preset (untrained)."""
    text: str = "stdlib"
    """A file, folder, glob or source."""
    tokens: int = 512
    """Tokens of the text to read; the weights of a layer are formed, tokens x tokens."""
    output: Output = field(default_factory=Output)


@config
class Relevance:
    """Relevance maps of every head on a text: who reads whom, and how much."""

    model: Model
    """A run, a checkpoint, a saved model, or a preset (untrained)."""
    text: str = "stdlib"
    """A file, folder, glob or source."""
    tokens: int = 64
    """Tokens of the text to read."""
    output: Output = field(default_factory=Output)


@config
class Stability:
    """Final loss by learning rate, with the spread over seeds; diverged runs are shown."""

    folders: Folders
    """Folders of runs, such as that of keysift sweep --over lr=... seed=..."""
    output: Output = field(default_factory=Output)


@config
class Scaling:
    """Final loss by parameters, each size at the best of its learning rates."""

    folders: Folders
    """Folders of runs of several sizes."""
    output: Output = field(default_factory=Output)


@config
class Latency:
    """Seconds by context length, from what keysift bench models wrote."""

    result: Annotated[Path, tyro.conf.Positional]
    """A JSON file of keysift bench models --out FILE."""
    output: Output = field(default_factory=Output)


@config
class Lm:
    """Tasks of lm-eval (extra [lm]), by name or from task files of your own."""

    model: Model
    """A run, a checkpoint or a saved model."""
    tasks: tuple[str, ...]
    """Names of tasks."""
    include: Path | None = None
    """A folder with task files (YAML)."""
    fewshot: int | None = None
    """Examples before each question; the task's own number if left out."""
    limit: int | None = None
    """Questions of each task at most."""
    batch: int = 8
    """Questions at once."""
    expand_windows: bool = False
    """With window expansion."""
    json: bool = False
    """Print the results as JSON."""
    out: Path | None = None
    """File for the results as JSON."""


Measure = Loss | Positions | Retrieval | Windows | Relevance | Stability | Scaling | Latency


@config
class Args:
    do: (
        Annotated[Loss, tyro.conf.subcommand("loss")]
        | Annotated[Positions, tyro.conf.subcommand("positions")]
        | Annotated[Retrieval, tyro.conf.subcommand("retrieval")]
        | Annotated[Windows, tyro.conf.subcommand("windows")]
        | Annotated[Relevance, tyro.conf.subcommand("relevance")]
        | Annotated[Stability, tyro.conf.subcommand("stability")]
        | Annotated[Scaling, tyro.conf.subcommand("scaling")]
        | Annotated[Latency, tyro.conf.subcommand("latency")]
        | Annotated[Lm, tyro.conf.subcommand("lm")]
    )


def run(args: Args) -> None:
    if isinstance(args.do, Lm):
        from keysift.cli import eval_lm

        eval_lm.run(args.do)
        return
    from keysift.cli.eval_output import show
    from keysift.cli.measure import measure, place

    show(measure(args.do), args.do.output, place(args.do))
