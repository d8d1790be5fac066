"""Flags of `keysift eval`, one class for each measurement."""

from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from keysift.cli.flags.place import Place
from keysift.core.config import config

Model = Annotated[str, tyro.conf.Positional]
Models = Annotated[tuple[str, ...], tyro.conf.Positional]
Folders = Annotated[tuple[Path, ...], tyro.conf.Positional]


@config
class Output:
    json: bool = False
    """Print the record as JSON."""
    csv: bool = False
    """Print the rows of the record as CSV."""
    out: Path | None = None
    """Folder for the record, its rows as CSV and its figure. By default a run keeps the record in its folder evals."""


@config
class Beyond:
    """Inference settings for texts beyond the training length, in addition to the model as trained."""

    expand_windows: bool = False
    """Also measure with expanded windows."""
    rope_factors: tuple[float, ...] = ()
    """Also measure with RoPE positions divided by each of these factors."""
    rope_scalings: tuple[str, ...] = ()
    """Also measure with each of these scalings of RoPE's frequencies, e.g. ntk:factor=4 or yarn:factor=4."""


@config
class Loss:
    """Loss and bits per byte of a text, read in overlapping chunks, for one or several models."""

    models: Models
    """Runs, checkpoints, saved models, or presets (untrained)."""
    text: str = "stdlib"
    """A file, folder, glob or source, as for keysift train --data."""
    tokens: int = 65_536
    """Maximum number of tokens to read."""
    context: int | None = None
    """Tokens per chunk; by default the training length."""
    stride: int | None = None
    """Tokens between the starts of two chunks; by default half the context."""
    output: Output = field(default_factory=Output)


@config
class Positions:
    """Loss by position on long documents, up to many times the training length."""

    model: Model
    """A run, a checkpoint, a saved model, or a preset (untrained)."""
    text: str = "stdlib"
    """A file, folder, glob or source with long documents."""
    length: int | None = None
    """Tokens to read of each document; by default 16 times the training length."""
    documents: int = 8
    """Maximum number of documents."""
    beyond: Beyond = field(default_factory=Beyond)
    output: Output = field(default_factory=Output)


@config
class Retrieval:
    """Accuracy by context length and depth, with confidence intervals."""

    model: Model
    """A run, a checkpoint, a saved model, or a preset (untrained)."""
    task: Literal["abcdigits", "passkey", "mqar", "recall"] = "abcdigits"
    """The task; recall needs a model trained on it."""
    lengths: tuple[int, ...] = ()
    """Context lengths in tokens; by default 512, 1024 and 2048, for recall 1 to 64 times the training length."""
    depths: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    """Positions of the needle, as a share of the context."""
    instances: int = 50
    """Texts per cell."""
    seed: int = 0
    """Seed of the texts."""
    beyond: Beyond = field(default_factory=Beyond)
    place: Place = field(default_factory=Place)
    output: Output = field(default_factory=Output)


@config
class Windows:
    """Learned window and acceptance of every head, and the share of keys it accepts on a text."""

    model: Model
    """A run, a checkpoint, a saved model, or a preset (untrained)."""
    text: str = "stdlib"
    """A file, folder, glob or source."""
    tokens: int = 512
    """Tokens to read. Memory grows with their square: the attention weights of one layer are formed at a time."""
    lengths: tuple[int, ...] = ()
    """Also decode after each of these numbers of tokens, and count the keys that each tile reads and accepts. Needs the
    compiled kernel."""
    expand_windows: bool = False
    """Expand windows for --lengths."""
    output: Output = field(default_factory=Output)


@config
class Relevance:
    """Relevance maps of every head on a text: the weight of every key for every query."""

    model: Model
    """A run, a checkpoint, a saved model, or a preset (untrained)."""
    text: str = "stdlib"
    """A file, folder, glob or source."""
    tokens: int = 64
    """Tokens to read."""
    output: Output = field(default_factory=Output)


@config
class Stability:
    """Final loss by learning rate, mean and standard deviation over seeds; diverged runs are marked."""

    folders: Folders
    """Folders of runs, e.g. of keysift sweep --over lr=... seed=..."""
    output: Output = field(default_factory=Output)


@config
class Scaling:
    """Final loss by parameter count, each size at its best learning rate."""

    folders: Folders
    """Folders with runs of models of several sizes."""
    output: Output = field(default_factory=Output)


@config
class Lm:
    """Tasks of lm-eval (extra [lm]), by name or from your own task files."""

    model: Model
    """A run, a checkpoint or a saved model."""
    tasks: tuple[str, ...]
    """Names of tasks."""
    include: Path | None = None
    """A folder with task files (YAML)."""
    fewshot: int | None = None
    """Few-shot examples; by default as the task says."""
    limit: int | None = None
    """Maximum number of questions per task."""
    batch: int = 8
    """Questions per batch."""
    expand_windows: bool = False
    """Expand the windows."""
    json: bool = False
    """Print the results as JSON."""
    out: Path | None = None
    """File for the results as JSON."""


Evaluation = Loss | Positions | Retrieval | Windows | Relevance | Stability | Scaling
