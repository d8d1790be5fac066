"""Runs of a folder as trials: how each ended, and whether it diverged. Reads run directories, never a model."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keysift.core.errors import DataError
from keysift.evaluate.measured_runs import Trial
from keysift.runs.compare import compare
from keysift.runs.summary import Summary, find_runs, summary

_NEAR = 10  # steps averaged at the end of the warm-up and at the end of the run
_OWN_AXES = ("lr", "warmup", "seed")


def trials(folders: Sequence[Path]) -> tuple[Trial, ...]:
    paths = sorted({path for folder in folders for path in find_runs(folder)})
    if not paths:
        raise DataError(
            f"no runs in {', '.join(map(str, folders)) or 'an empty list'}; "
            f"make some with keysift sweep --over lr=0.001,0.01 seed=0,1 --steps 100 --out sweeps/rates"
        )
    found = [summary(path) for path in paths]
    by_name = {one.name: one for one in compare(found, [one.path for one in found]).runs}
    return tuple(_trial(one, by_name[one.path].differs) for one in found)


def _trial(one: Summary, differs: dict[str, str]) -> Trial:
    kind, _, mechanism = one.model.partition(", ")
    own = [f"{name} {value}" for name, value in differs.items() if name not in _OWN_AXES and value]
    found = verdict(one)
    loss = one.val_loss if one.val_loss is not None else found.ended
    return Trial(
        run=one.path,
        family=", ".join([kind.split(" ")[0], *([mechanism] if mechanism else []), *own]),
        model=", ".join([one.model, *own]),
        parameters=one.parameters,
        tokens=one.step * _number(one, "batch_tokens"),
        rate=float(one.settings.get("lr") or 0.0),
        seed=_number(one, "seed"),
        loss=loss if loss is not None and math.isfinite(loss) else None,
        warmed=found.warmed,
        state=found.state,
    )


@dataclass(frozen=True)
class Verdict:
    """What became of a run: its state, and its training loss at the end of the warm-up and at the end."""

    state: str
    warmed: float | None
    ended: float | None


def verdict(one: Summary) -> Verdict:
    """A run that ends above where it began, or where its warm-up left it, has diverged too, finite or not."""
    warmup = one.settings.get("warmup")
    warmed = _mean(one.losses[: max(warmup if isinstance(warmup, int) else 1, 1)][-_NEAR:])
    ended = _mean(one.losses[-_NEAR:])
    over = one.state in ("finished", "time over")
    lost = over and (ended is None or not ended <= _most(one, warmed))
    return Verdict("diverged" if lost else one.state, warmed, ended)


def _most(one: Summary, warmed: float | None) -> float:
    """The training loss above which a run has diverged."""
    warmed = math.inf if warmed is None else warmed
    if not one.settings.get("init"):
        # Above its first loss a model is worse than an untrained one, however far a wild warm-up had thrown it.
        return min(one.losses[0], warmed)
    # A model that was trained before may stay where it was, and then batches differ more than it moves.
    last = one.losses[-_NEAR:]
    return warmed + max(last) - min(last)


def _mean(losses: Sequence[float]) -> float | None:
    """None if there are none, or one is not finite."""
    return statistics.mean(losses) if losses and all(map(math.isfinite, losses)) else None


def _number(one: Summary, name: str) -> int:
    value = one.settings.get(name)
    return value if isinstance(value, int) else 0
