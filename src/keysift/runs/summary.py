"""What became of a run, read from its directory without loading a model."""

import itertools
import json
from pathlib import Path
from typing import Any

from keysift.core.config import config
from keysift.core.errors import DataError
from keysift.runs.layout import DIAGNOSIS, METRICS, TRAIN, holds_a_run, in_use, saved
from keysift.runs.metrics import read

_BARS = "▁▂▃▄▅▆▇█"


@config
class Summary:
    """One run, for lists and tables."""

    path: str
    arch: str
    parameters: int
    data: str
    step: int
    steps: int | None
    saved: int
    """Step of the newest checkpoint, 0 if there is none."""
    state: str
    """running, finished, stopped, or diverged."""
    loss: float | None
    val_loss: float | None
    bits_per_byte: float | None
    tokens_per_second: float | None
    losses: tuple[float, ...]


def summary(run: Path) -> Summary:
    try:
        told = json.loads((run / TRAIN).read_text())
        shape = told["config"]["arch"], told["parameters"], told["config"]["data"], told["config"]["steps"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{run / TRAIN} does not describe a run ({error!r}); remove it or look elsewhere") from error
    arch, parameters, data, wanted = shape
    lines = list(read(run / METRICS))
    last: dict[str, Any] = lines[-1] if lines else {}
    checked = [line for line in lines if "val_loss" in line]
    kept = saved(run)
    state = "finished" if wanted is not None and kept >= wanted else "stopped"
    if in_use(run):
        state = "running"
    elif (run / DIAGNOSIS).exists():
        state = "diverged"
    speeds = sorted(line["tokens_per_second"] for line in lines)
    return Summary(
        path=str(run),
        arch=arch,
        parameters=parameters,
        data=data,
        step=last.get("step", 0),
        steps=wanted,
        saved=kept,
        state=state,
        loss=last.get("loss"),
        val_loss=checked[-1]["val_loss"] if checked else None,
        bits_per_byte=checked[-1]["val_bits_per_byte"] if checked else None,
        tokens_per_second=speeds[len(speeds) // 2] if speeds else None,
        losses=tuple(line["loss"] for line in lines),
    )


def find_runs(folder: Path) -> list[Path]:
    """Run directories in a folder, or the folder itself."""
    if holds_a_run(folder):
        return [folder]
    return sorted(path.parent for path in folder.glob(f"**/{TRAIN}"))


def sparkline(values: tuple[float, ...], width: int = 24) -> str:
    """Means of equal stretches, from the lowest bar to the highest."""
    if not values:
        return ""
    width = min(width, len(values))
    cuts = [len(values) * i // width for i in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(cuts)]
    low, high = min(means), max(means)
    if high == low:
        return _BARS[0] * width
    return "".join(_BARS[round((mean - low) / (high - low) * (len(_BARS) - 1))] for mean in means)
