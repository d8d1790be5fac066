"""What several runs say together, as plain data without torch: stability over learning rates, scaling over sizes."""

import statistics
from collections.abc import Iterable
from typing import Literal

from keysift.core.config import config
from keysift.core.provenance import Made


@config
class Trial:
    """One run among those compared."""

    run: str
    family: str
    """What the model is apart from its size: its kind, its mechanism and other settings that differ."""
    model: str
    """The family and the size."""
    parameters: int
    tokens: int
    """Tokens trained on."""
    rate: float
    seed: int
    loss: float | None
    """Validation loss at the end, training loss where nothing was validated; None if it is not finite."""
    warmed: float | None
    """Training loss at the end of the warm-up."""
    state: str
    """finished, time over, diverged, or a state that is not final yet (running, stopped)."""

    @property
    def diverged(self) -> bool:
        return self.state == "diverged"

    @property
    def counts(self) -> bool:
        """Whether its loss is a final one."""
        return self.state in ("finished", "time over") and self.loss is not None


@config
class Spread:
    """Trials that differ by their seed alone."""

    name: str
    parameters: int
    rate: float
    mean: float | None
    """Over the trials that ended with a finite loss; None if there is none."""
    deviation: float | None
    """Standard deviation over seeds; None for fewer than two."""
    seeds: int
    diverged: int


def spreads(trials: Iterable[Trial], *, by_family: bool) -> list[Spread]:
    """One for each name, size and rate, smallest first; names are families, or models with their size."""
    together: dict[tuple[str, int, float], list[Trial]] = {}
    for one in trials:
        together.setdefault((one.family if by_family else one.model, one.parameters, one.rate), []).append(one)
    found = []
    for (name, parameters, rate), members in sorted(together.items()):
        losses = [one.loss for one in members if one.counts and one.loss is not None]
        found.append(
            Spread(
                name=name,
                parameters=parameters,
                rate=rate,
                mean=statistics.mean(losses) if losses else None,
                deviation=statistics.stdev(losses) if len(losses) > 1 else None,
                seeds=len(losses),
                diverged=sum(one.diverged for one in members),
            )
        )
    return found


@config
class Stability:
    """Final loss by learning rate. Diverged runs are part of it."""

    source: str
    """The folder of the sweep."""
    trials: tuple[Trial, ...]
    made: Made
    format: Literal["keysift-stability"] = "keysift-stability"
    version: Literal[1] = 1

    @property
    def points(self) -> list[Spread]:
        return spreads(self.trials, by_family=False)

    def best(self, model: str) -> Spread | None:
        """The rate with the lowest mean, of those at which no seed diverged."""
        able = [one for one in self.points if one.name == model and one.mean is not None and not one.diverged]
        return min(able, key=lambda one: one.mean or 0.0, default=None)


@config
class Scaling:
    """Final loss by parameters, each size at the best of its rates."""

    source: str
    trials: tuple[Trial, ...]
    made: Made
    format: Literal["keysift-scaling"] = "keysift-scaling"
    version: Literal[1] = 1

    @property
    def points(self) -> list[Spread]:
        found: dict[tuple[str, int], Spread] = {}
        for one in spreads(self.trials, by_family=True):
            if one.mean is None:
                continue
            best = found.get((one.name, one.parameters))
            if best is None or best.mean is None or one.mean < best.mean:
                found[one.name, one.parameters] = one
        return list(found.values())
