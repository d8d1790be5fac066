"""Read the runs of a folder as trials: final loss, and whether each run diverged. No model is loaded."""

import math
import shlex
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keysift.core.errors import DataError
from keysift.core.provenance import Provenance
from keysift.records.runs import RunSummary
from keysift.records.trials import Scaling, Stability, Trial
from keysift.runs.compare import labelling_settings, setting_text
from keysift.runs.summary import find_runs, summary

_AVERAGED = 10  # steps averaged at the end of the warm-up and at the end of the run
_OWN_AXES = ("lr", "warmup", "seed")


def read_stability(folders: Sequence[Path]) -> Stability:
    """Final loss by learning rate of the runs in these folders."""
    start = time.monotonic()
    trials, command = read_trials(folders), _command("stability", folders)
    return Stability(source=_source(folders), trials=trials, made=_provenance(command, start))


def read_scaling(folders: Sequence[Path]) -> Scaling:
    """Final loss by parameter count of the runs in these folders."""
    start = time.monotonic()
    trials, command = read_trials(folders), _command("scaling", folders)
    return Scaling(source=_source(folders), trials=trials, made=_provenance(command, start))


def _provenance(command: str, start: float) -> Provenance:
    from keysift.runs import machine  # imports torch, which reading runs does not need

    return machine.record_provenance(command, start)


def trial_runs(folders: Sequence[Path]) -> list[Path]:
    """The runs in these folders. Raises DataError if there is none."""
    paths = sorted({path for folder in folders for path in find_runs(folder)})
    if not paths:
        raise DataError(
            f"no runs in {', '.join(map(str, folders)) or 'an empty list'}; "
            f"make some with keysift sweep --over lr=0.001,0.01 seed=0,1 --steps 100 --out sweeps/rates"
        )
    return paths


def read_trials(folders: Sequence[Path]) -> tuple[Trial, ...]:
    """One trial for each run in these folders."""
    runs = [summary(path) for path in trial_runs(folders)]
    fields = [name for name in labelling_settings(runs) if name not in _OWN_AXES]
    return tuple(_trial(run, {name: setting_text(run, name) for name in fields}) for run in runs)


def _trial(run: RunSummary, differs: dict[str, str]) -> Trial:
    kind, _, mechanism = run.model.partition(", ")
    settings = [f"{name} {value}" for name, value in differs.items() if value]
    outcome = run_outcome(run)
    loss = run.val_loss if run.val_loss is not None else outcome.final_loss
    return Trial(
        run=run.path,
        family=", ".join([kind.split(" ")[0], *([mechanism] if mechanism else []), *settings]),
        model=", ".join([run.model, *settings]),
        parameters=run.parameters,
        tokens=run.step * _integer(run, "batch_tokens"),
        rate=float(run.settings.get("lr") or 0.0),
        seed=_integer(run, "seed"),
        loss=loss if loss is not None and math.isfinite(loss) else None,
        warmup_loss=outcome.warmup_loss,
        state=outcome.state,
    )


@dataclass(frozen=True)
class RunOutcome:
    """State of a run, and its training loss at the end of the warm-up and at the end."""

    state: str
    warmup_loss: float | None
    final_loss: float | None


def run_outcome(run: RunSummary) -> RunOutcome:
    """A finished run has also diverged if its loss ends above its first loss, or above that after the warm-up."""
    warmup = run.settings.get("warmup")
    warmup_loss = _mean(run.losses[: max(warmup if isinstance(warmup, int) else 1, 1)][-_AVERAGED:])
    final_loss = _mean(run.losses[-_AVERAGED:])
    finished = run.state in ("finished", "time over")
    diverged = finished and (final_loss is None or not final_loss <= _divergence_threshold(run, warmup_loss))
    return RunOutcome("diverged" if diverged else run.state, warmup_loss, final_loss)


def _divergence_threshold(run: RunSummary, warmup_loss: float | None) -> float:
    """The training loss above which a run has diverged."""
    warmup_loss = math.inf if warmup_loss is None else warmup_loss
    if not run.settings.get("init"):
        # Above its first loss a model is worse than an untrained one, whatever the loss after the warm-up.
        return min(run.losses[0], warmup_loss)
    # A pretrained model may not improve; the noise between batches must not count as divergence.
    last = run.losses[-_AVERAGED:]
    return warmup_loss + max(last) - min(last)


def _mean(losses: Sequence[float]) -> float | None:
    """None if there are no losses, or any is not finite."""
    return statistics.mean(losses) if losses and all(map(math.isfinite, losses)) else None


def _integer(run: RunSummary, name: str) -> int:
    value = run.settings.get(name)
    return value if isinstance(value, int) else 0


def _source(folders: Sequence[Path]) -> str:
    return ", ".join(map(str, folders))


def _command(measurement: str, folders: Sequence[Path]) -> str:
    return shlex.join(["keysift", "eval", measurement, *map(str, folders)])
