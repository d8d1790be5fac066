"""A study as study.toml describes it: what to train, what to measure, and which claims the records decide.

    data = "recall"                          training settings of all runs, named as the flags of keysift train
    steps = 1000

    [study]
    seeds = [0, 1, 2]
    measure = ["lengths"]
    [[study.grid]]
    each = ["arch=multiscreen psi=4", "arch=transformer depth=2"]      models
    over = ["lr=0.01,0.02"]                                            grid of each model

    [page]
    order = 2
    title = "One-hop recall"
    figure = "accuracy_by_length"
    larger = "The same for larger models."

    [[claims]]
    text = "At 16 times the training length, a Multiscreen retrieves more than a Transformer"
    rule = "accuracy_higher"
    length = 16

This module does not import torch.
"""

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from keysift.core.config import config, from_dict
from keysift.core.errors import ConfigError, DataError

ROOT = Path(__file__).parent
DEVELOPMENT = "development"  # the measurement that chooses a grid point, on rows that decide no claim
POSITIONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # contexts of loss by position, in training lengths

Measure = Literal["lengths", "positions", "windows", "accuracy_by_step", "context_gain", "unigram"]
Figure = Literal[
    "accuracy_by_length",
    "context_gain",
    "loss_by_position",
    "loss_by_rate",
    "loss_by_size",
    "loss_by_tokens",
    "tokens_by_width",
]
RuleName = Literal[
    "no_divergence",
    "accuracy_higher",
    "context_gain_higher",
    "loss_rise_lower",
    "loss_lower",
    "fewer_parameters",
    "fewer_tokens",
    "order_predicted",
    "sensitivity_lower",
    "faster_at_longest",
]


@config
class Grid:
    each: tuple[str, ...]
    """Models, written as for keysift sweep --each."""
    over: tuple[str, ...] = ()
    """Axes, written as for keysift sweep --over."""


@config
class Plan:
    """The runs of a study and their measurements."""

    grid: tuple[Grid, ...]
    development_seeds: tuple[int, ...] = ()
    """Seeds that choose the grid point of each model and decide no claim; by default the first of `seeds` chooses."""
    choose_at: int = 0
    """The choice is by accuracy as trained at this multiple of the training length; 0 is by validation loss."""
    widen: int = 0
    """How often the learning rates of a model are extended if its best one is the first or the last of them."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds that decide claims."""
    seeds_at: Literal["best", "all"] = "best"
    """Where these seeds run: at the chosen grid point of each model, or at every point."""
    measure: tuple[Measure, ...] = ()
    """Measurements of the runs that have every seed."""
    texts: str = "stdlib"
    """Documents for loss by position."""

    def __post_init__(self) -> None:
        if not self.grid or not self.seeds:
            raise ConfigError("a study needs at least one grid and one seed; see evidence/one-hop/study.toml")
        if set(self.seeds) & set(self.development_seeds):
            raise ConfigError("seeds that decide claims must be fresh; give development_seeds other numbers than seeds")

    @property
    def choosing_seeds(self) -> tuple[int, ...]:
        """Seeds that run at every grid point."""
        return self.development_seeds or (self.seeds if self.seeds_at == "all" else self.seeds[:1])

    @property
    def runs(self) -> int:
        """Number of runs, if every model has a grid point that finishes and no grid is widened."""
        later = 0 if self.seeds_at == "all" else len(set(self.seeds) - set(self.choosing_seeds))
        points = (
            len(grid.each) * math.prod(len(axis.partition("=")[2].split(",")) for axis in grid.over)
            for grid in self.grid
        )
        return sum(points) * len(self.choosing_seeds) + later * sum(len(grid.each) for grid in self.grid)


@config
class Page:
    order: int
    """Position in the table of claims."""
    title: str
    figure: Figure | None = None
    larger: str
    """What is left for a larger study."""
    note: str = ""
    """Added to the rule."""
    benchmark: str = ""
    """A stored benchmark that the claims are about, relative to the repository, instead of trained runs."""


@config
class Claim:
    """A claim and the rule that decides it. Models are named by their labels (evidence.claims.groups.label)."""

    text: str
    rule: RuleName
    primary: bool = False
    """One of the few claims that Holm's correction covers. The others are exploratory."""
    margin: float = 0.0
    """Differences up to this size count as equal, in the unit of the rule."""
    ours: str = "Multiscreen"
    theirs: str = "Transformer"
    our_setting: str = "as trained"
    """How our model was run for the measurement."""
    their_setting: str = "as trained"
    length: int = 1
    """Of accuracy_higher and context_gain_higher: the multiple of the training length."""
    step: Literal["forward", "decode"] = "forward"
    """Of faster_at_longest: what was timed."""


@dataclass(frozen=True)
class Study:
    """A study folder. `plan` is None where the claims are about a benchmark; `training` holds the flags of train."""

    folder: Path
    page: Page
    claims: tuple[Claim, ...]
    plan: Plan | None
    training: dict[str, Any]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def records(self) -> Path:
        return self.folder / "records.jsonl"

    @property
    def repeats(self) -> Path:
        return self.folder / "repeats.jsonl"


def find_studies(root: Path = ROOT) -> list[Study]:
    """Every study below a folder, in the order of their pages."""
    studies = [read_study(file.parent) for file in root.glob("*/study.toml")]
    return sorted(studies, key=lambda study: study.page.order)


def read_study(folder: Path) -> Study:
    file = folder / "study.toml"
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        names = ", ".join(sorted(path.parent.name for path in ROOT.glob("*/study.toml")))
        raise DataError(f"cannot read {file} ({error}); the studies are {names}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML ({error}); see evidence/one-hop/study.toml") from error
    for name in ("page", "claims"):
        if name not in tables:
            raise ConfigError(f"{file} has no [{name}]; see evidence/one-hop/study.toml")
    page, claims, plan = tables.pop("page"), tables.pop("claims"), tables.pop("study", None)
    return Study(
        folder=folder,
        page=from_dict(Page, page),
        claims=tuple(from_dict(Claim, claim) for claim in claims),
        plan=None if plan is None else from_dict(Plan, plan),
        training=tables,
    )
