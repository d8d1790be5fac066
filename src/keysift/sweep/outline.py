"""What the file of a study says about its runs, apart from what is trained. Free of torch, so that pages can be made
anywhere."""

import math
import tomllib
from pathlib import Path
from typing import Any, Literal

from keysift.core.config import config, from_dict
from keysift.core.errors import ConfigError, DataError

Measure = Literal["lengths", "positions", "windows"]
POSITIONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # where loss by position is read, in training lengths


@config
class Grid:
    each: tuple[str, ...]
    """Contestants, as a sweep lists them."""
    over: tuple[str, ...] = ()
    """Axes, as a sweep spans them."""


@config
class Plan:
    grid: tuple[Grid, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    seeds_at: Literal["best", "all"] = "best"
    """Where the seeds after the first one run: at the best point of each contestant, or at every point."""
    measure: tuple[Measure, ...] = ()
    """What is measured of the runs that have every seed."""
    texts: str = "stdlib"
    """Documents that positions are measured on."""

    def __post_init__(self) -> None:
        if not self.grid or not self.seeds:
            raise ConfigError("a study needs at least one grid and one seed; see recipes/evidence")

    @property
    def runs(self) -> int:
        """How many there are in all, if every contestant has a point that counts."""
        found = 0
        for grid in self.grid:
            points = math.prod(len(axis.partition("=")[2].split(",")) for axis in grid.over)
            seeds = len(self.seeds)
            found += len(grid.each) * (points * seeds if self.seeds_at == "all" else points + seeds - 1)
        return found


def read_plan(path: Path) -> Plan:
    return from_dict(Plan, read_told(path)["study"])


def read_told(path: Path) -> dict[str, Any]:
    """The tables of a study's file; it has a `study`."""
    try:
        told = tomllib.loads(path.read_text())
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}); --study takes a TOML file, see recipes/evidence") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML ({error}); see recipes/evidence") from error
    if "study" not in told:
        raise ConfigError(f"{path} has no [study]; see recipes/evidence, or keysift train --config for one run")
    return told
