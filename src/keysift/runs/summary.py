"""Summary of a run, read from its directory without loading the model. Free of torch."""

import itertools
import os
from pathlib import Path
from typing import Any

from keysift.core import safe_json
from keysift.core.errors import DataError
from keysift.records.runs import RunSummary
from keysift.runs.layout import (
    CHECKPOINTS,
    DIAGNOSIS,
    ENVIRONMENT,
    METRICS,
    TIME_OVER,
    TRAIN,
    is_locked,
    is_run_directory,
    saved_step,
)
from keysift.runs.metrics import read

_BARS = "▁▂▃▄▅▆▇█"


def summary(run: Path) -> RunSummary:
    """Read the manifest, the metrics and the state of a run."""
    try:
        manifest = safe_json.load(run / TRAIN)
        settings, parameters = dict(manifest["config"]), int(manifest["parameters"])
        arch, data, steps = settings["arch"], settings["data"], settings["steps"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{run / TRAIN} does not describe a run ({error!r}); remove it or choose another") from error
    if not (isinstance(arch, str) and isinstance(data, str) and (steps is None or type(steps) is int)):
        raise DataError(f"{run / TRAIN} does not describe a run (arch, data or steps); remove it or choose another")
    lines = list(read(run / METRICS))
    last: dict[str, Any] = lines[-1] if lines else {}
    validated = [line for line in lines if _number(line, "val_loss") is not None]
    newest: dict[str, Any] = validated[-1] if validated else {}
    speeds = sorted(speed for line in lines if (speed := _number(line, "tokens_per_second")) is not None)
    return RunSummary(
        path=str(run),
        arch=arch,
        settings=settings,
        parameters=parameters,
        data=data,
        step=last.get("step", 0),
        steps=steps,
        saved=saved_step(run),
        state=_state(run, steps),
        loss=_number(last, "loss"),
        val_loss=_number(newest, "val_loss"),
        bits_per_byte=_number(newest, "val_bits_per_byte"),
        accuracy=_number(newest, "val_accuracy"),
        tokens_per_second=speeds[len(speeds) // 2] if speeds else None,
        losses=tuple(loss for line in lines if (loss := _number(line, "loss")) is not None),
        validations=tuple((line["step"], line["val_loss"]) for line in validated),
    )


def _state(run: Path, steps: int | None) -> str:
    if is_locked(run):
        return "running"
    if (run / DIAGNOSIS).exists():
        return "diverged"
    if steps is not None and saved_step(run) >= steps:
        return "finished"
    return TIME_OVER if session_ending(run) == TIME_OVER else "stopped"


def session_ending(run: Path) -> str | None:
    """How the newest session ended; None if it was killed."""
    try:
        newest = safe_json.load(run / ENVIRONMENT)[-1]
        return str(newest["ended"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _number(line: dict[str, Any], name: str) -> float | None:
    value = line.get(name)
    return value if isinstance(value, int | float) else None


def find_runs(folder: Path) -> list[Path]:
    """Run directories inside a folder, or the folder itself."""
    if is_run_directory(folder):
        return [folder]
    runs = []
    for here, inside, _ in os.walk(folder):  # unlike glob, it tolerates folders that are removed meanwhile
        if is_run_directory(Path(here)):
            runs.append(Path(here))
            inside[:] = [name for name in inside if name != CHECKPOINTS]
    return sorted(runs)


def sparkline(values: tuple[float, ...], width: int = 24) -> str:
    """A line of bars: means of equal parts of the values, scaled from the lowest to the highest."""
    if not values:
        return ""
    width = min(width, len(values))
    cuts = [len(values) * i // width for i in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(cuts)]
    low, high = min(means), max(means)
    if high == low:
        return _BARS[0] * width
    return "".join(_BARS[round((mean - low) / (high - low) * (len(_BARS) - 1))] for mean in means)
