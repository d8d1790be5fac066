"""A study: contestants, each at its own best setting from a grid, then again with other seeds. Kept as a TOML file.

    data = "recall"                          the names of train's flags, for all
    steps = 1000

    [study]
    seeds = [0, 1, 2]
    measure = ["lengths"]
    [[study.grid]]
    each = ["arch=multiscreen psi=4", "arch=transformer depth=2"]      contestants
    over = ["lr=0.01,0.02"]                                            the first seed at every point

With `seeds_at = "all"` every point has every seed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from keysift.core.config import from_dict
from keysift.sweep.outline import Plan, read_told
from keysift.sweep.plan import points
from keysift.train.config import TrainConfig
from keysift.train.settings import apply


@dataclass(frozen=True)
class Study:
    base: TrainConfig
    plan: Plan

    def first(self) -> dict[str, TrainConfig]:
        """The runs that nothing has to be known for."""
        seeds = self.plan.seeds if self.plan.seeds_at == "all" else self.plan.seeds[:1]
        return {name: run for contestant in self._contestants(seeds) for name, run in contestant.items()}

    def then(self, figure: Callable[[str], float | None]) -> dict[str, TrainConfig]:
        """The best point of each contestant with every seed, by a figure of its first runs: the lower the better, None
        for one that does not count. Every run, where every point has every seed."""
        if self.plan.seeds_at == "all":
            return self.first()
        found: dict[str, TrainConfig] = {}
        every = self._contestants(self.plan.seeds)
        for first, all_seeds in zip(self._contestants(self.plan.seeds[:1]), every, strict=True):
            figures = {name: figure(name) for name in first}
            able = {name: value for name, value in figures.items() if value is not None}
            if able:
                stem = min(able, key=lambda name: able[name]).rpartition("_seed=")[0]
                found |= {name: run for name, run in all_seeds.items() if name.rpartition("_seed=")[0] == stem}
        return found

    def _contestants(self, seeds: tuple[int, ...]) -> list[dict[str, TrainConfig]]:
        last = f"seed={','.join(map(str, seeds))}"
        return [points(self.base, (one,), (*grid.over, last)) for grid in self.plan.grid for one in grid.each]


def read_study(path: Path) -> Study:
    told = read_told(path)
    return Study(
        apply(TrainConfig(), {name: v for name, v in told.items() if name != "study"}), from_dict(Plan, told["study"])
    )
