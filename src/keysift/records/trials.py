"""Records of several runs: stability over learning rates, and scaling over sizes."""

from collections.abc import Iterable
from typing import Literal

from keysift.core.config import config
from keysift.core.provenance import Provenance
from keysift.core.statistics import Sample, sample


@config
class Trial:
    """One run of a sweep."""

    run: str
    family: str
    """The model without its size: architecture, mechanism and other settings that differ."""
    model: str
    """The family with its size."""
    parameters: int
    tokens: int
    """Tokens trained on."""
    rate: float
    seed: int
    loss: float | None
    """Final validation loss, or training loss without validation; None if it is not finite."""
    warmup_loss: float | None
    """Training loss at the end of the warm-up."""
    state: str
    """"finished", "time over", "diverged", or a state of an unfinished run ("running", "stopped")."""

    @property
    def diverged(self) -> bool:
        return self.state == "diverged"

    @property
    def has_final_loss(self) -> bool:
        return self.state in ("finished", "time over") and self.loss is not None


@config
class TrialGroup:
    """Trials that differ in their seed only."""

    name: str
    parameters: int
    rate: float
    losses: Sample | None
    """Final losses of the trials that did not diverge; None if all did."""
    diverged: int
    """Number of diverged trials."""


def group_trials(trials: Iterable[Trial], *, by_family: bool) -> list[TrialGroup]:
    """One group for each name, size and rate, smallest first. Names are families, or models with their size."""
    members: dict[tuple[str, int, float], list[Trial]] = {}
    for trial in trials:
        key = (trial.family if by_family else trial.model, trial.parameters, trial.rate)
        members.setdefault(key, []).append(trial)
    return [
        TrialGroup(
            name=name,
            parameters=parameters,
            rate=rate,
            losses=sample(trial.loss for trial in group if trial.has_final_loss),
            diverged=sum(trial.diverged for trial in group),
        )
        for (name, parameters, rate), group in sorted(members.items())
    ]


@config
class Stability:
    """Final loss by learning rate, diverged runs included."""

    source: str
    """The folder of the sweep."""
    trials: tuple[Trial, ...]
    made: Provenance
    format: Literal["keysift-stability"] = "keysift-stability"
    version: Literal[1] = 1

    @property
    def points(self) -> list[TrialGroup]:
        return group_trials(self.trials, by_family=False)

    def best(self, model: str) -> TrialGroup | None:
        """The rate with the lowest mean loss, among rates at which no seed diverged."""
        stable = [(group.losses.mean, group) for group in self.points if group.losses and not group.diverged]
        return min((pair for pair in stable if pair[1].name == model), key=lambda pair: pair[0], default=(0.0, None))[1]


@config
class Scaling:
    """Final loss by parameter count, each size at its best learning rate."""

    source: str
    trials: tuple[Trial, ...]
    made: Provenance
    format: Literal["keysift-scaling"] = "keysift-scaling"
    version: Literal[1] = 1

    @property
    def points(self) -> list[TrialGroup]:
        best: dict[tuple[str, int], TrialGroup] = {}
        for group in group_trials(self.trials, by_family=True):
            if group.losses is None:
                continue
            other = best.get((group.name, group.parameters))
            if other is None or other.losses is None or group.losses.mean < other.losses.mean:
                best[group.name, group.parameters] = group
        return list(best.values())
