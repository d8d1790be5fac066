"""What became of a run, read from its directory without loading a model. Free of torch."""

import itertools
import os
from pathlib import Path
from typing import Any

from keysift.core import jsons
from keysift.core.config import config
from keysift.core.errors import DataError
from keysift.runs.earlier import upgraded
from keysift.runs.layout import (
    CHECKPOINTS,
    DIAGNOSIS,
    ENVIRONMENT,
    METRICS,
    TIME_OVER,
    TRAIN,
    holds_a_run,
    in_use,
    saved,
)
from keysift.runs.metrics import read

_BARS = "▁▂▃▄▅▆▇█"


@config
class Summary:
    """One run, for lists, tables and pages."""

    path: str
    arch: str
    settings: dict[str, Any]
    """The resolved config, by the names of the flags."""
    parameters: int
    data: str
    step: int
    steps: int | None
    saved: int
    """Step of the newest checkpoint, 0 if there is none."""
    state: str
    """running, finished, time over, stopped, or diverged."""
    loss: float | None
    val_loss: float | None
    """The newest; validations has them all."""
    bits_per_byte: float | None
    accuracy: float | None
    """Of the newest validation, where targets are answers."""
    tokens_per_second: float | None
    losses: tuple[float, ...]
    validations: tuple[tuple[int, float], ...]
    """Step and loss."""

    @property
    def name(self) -> str:
        return Path(self.path).name

    @property
    def model(self) -> str:
        """Kind, size and mechanism in a few words: multiscreen psi 6, screening; transformer 4x4x128, softmax."""
        told = self.settings
        depth, heads, width = told.get("depth"), told.get("tiles", told.get("heads")), told.get("width")
        if None in (depth, heads, width):
            return self.arch
        if self.arch == "multiscreen":
            family = depth == heads and isinstance(depth, int) and width == depth**2
            return f"{self.arch} {f'psi {depth}' if family else f'{depth}x{heads}x{width}'}, screening"
        mechanism = told.get("mechanism", "softmax")
        named = mechanism if isinstance(mechanism, str) else "/".join(map(str, mechanism))
        return f"{self.arch} {depth}x{heads}x{width}, {named}"


def summary(run: Path) -> Summary:
    try:
        told = jsons.loads((run / TRAIN).read_text())
        settings, parameters = upgraded(told["config"]), int(told["parameters"])
        arch, data, wanted = settings["arch"], settings["data"], settings["steps"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{run / TRAIN} does not describe a run ({error!r}); remove it or look elsewhere") from error
    if not (isinstance(arch, str) and isinstance(data, str) and (wanted is None or type(wanted) is int)):
        raise DataError(f"{run / TRAIN} does not describe a run (arch, data or steps); remove it or look elsewhere")
    lines = list(read(run / METRICS))
    last: dict[str, Any] = lines[-1] if lines else {}
    validated = [line for line in lines if _number(line, "val_loss") is not None]
    newest: dict[str, Any] = validated[-1] if validated else {}
    speeds = sorted(speed for line in lines if (speed := _number(line, "tokens_per_second")) is not None)
    return Summary(
        path=str(run),
        arch=arch,
        settings=settings,
        parameters=parameters,
        data=data,
        step=last.get("step", 0),
        steps=wanted,
        saved=saved(run),
        state=_state(run, wanted),
        loss=_number(last, "loss"),
        val_loss=_number(newest, "val_loss"),
        bits_per_byte=_number(newest, "val_bits_per_byte"),
        accuracy=_number(newest, "val_accuracy"),
        tokens_per_second=speeds[len(speeds) // 2] if speeds else None,
        losses=tuple(loss for line in lines if (loss := _number(line, "loss")) is not None),
        validations=tuple((line["step"], line["val_loss"]) for line in validated),
    )


def _state(run: Path, wanted: int | None) -> str:
    if in_use(run):
        return "running"
    if (run / DIAGNOSIS).exists():
        return "diverged"
    if wanted is not None and saved(run) >= wanted:
        return "finished"
    return TIME_OVER if ending(run) == TIME_OVER else "stopped"


def ending(run: Path) -> str | None:
    """How the newest session ended, if it says so."""
    try:
        newest = jsons.loads((run / ENVIRONMENT).read_text())[-1]
        return str(newest["ended"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _number(line: dict[str, Any], name: str) -> float | None:
    value = line.get(name)
    return value if isinstance(value, int | float) else None


def find_runs(folder: Path) -> list[Path]:
    """Run directories in a folder, or the folder itself."""
    if holds_a_run(folder):
        return [folder]
    found = []
    for here, inside, _ in os.walk(folder):  # unlike glob it minds no folder that is removed meanwhile
        if holds_a_run(Path(here)):
            found.append(Path(here))
            inside[:] = [name for name in inside if name != CHECKPOINTS]
    return sorted(found)


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
