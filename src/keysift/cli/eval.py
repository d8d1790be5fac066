"""Measure a model: loss on a text, loss by position, retrieval by length and depth, learned windows."""

from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from keysift.core.config import config

Model = Annotated[str, tyro.conf.Positional]


@config
class Output:
    json: bool = False
    """Print the record as JSON."""
    csv: bool = False
    """Print the rows of the record as CSV."""
    out: Path | None = None
    """Folder for the record, its rows and its figure; what an interrupted grid has finished is kept there."""


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
    task: Literal["abcdigits", "passkey", "mqar"] = "abcdigits"
    lengths: tuple[int, ...] = (512, 1024, 2048)
    """Context lengths in tokens."""
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
class Args:
    do: (
        Annotated[Loss, tyro.conf.subcommand("loss")]
        | Annotated[Positions, tyro.conf.subcommand("positions")]
        | Annotated[Retrieval, tyro.conf.subcommand("retrieval")]
        | Annotated[Windows, tyro.conf.subcommand("windows")]
    )


def run(args: Args) -> None:
    from keysift.cli import eval_measures

    measures: dict[type[Any], Any] = {
        Loss: eval_measures.loss,
        Positions: eval_measures.positions,
        Retrieval: eval_measures.retrieval,
        Windows: eval_measures.windows,
    }
    measures[type(args.do)](args.do)
