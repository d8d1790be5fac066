"""What is kept of a run when its directory is gone: one line of JSON, enough for every figure and table.

A file of records is the state of a study: a run that has a line is not made again. Free of torch, so that pages can
be made anywhere.
"""

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from keysift.core import jsons
from keysift.core.disk import write_whole
from keysift.core.errors import ConfigError, DataError
from keysift.evaluate.trials import verdict
from keysift.runs.layout import ENVIRONMENT, METRICS, TRAIN
from keysift.runs.metrics import read
from keysift.runs.summary import summary

_POINTS = 32  # of each curve


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run. `asked` is what the study said where that is not the default, `settings` is the whole config it became;
    both by the names of the flags."""

    name: str
    asked: dict[str, Any]
    settings: dict[str, Any]
    parameters: int
    stream: str
    """Hash of the tokens and their order."""
    state: str
    """finished, or diverged: see keysift.evaluate.trials.verdict."""
    step: int
    seconds: float
    """Of training, however often it was interrupted."""
    warmed: float | None
    """Training loss at the end of the warm-up."""
    ended: float | None
    """Training loss at the end."""
    val_loss: float | None
    bits_per_byte: float | None
    accuracy: float | None
    validations: list[list[float]]
    """Step and loss."""
    curves: dict[str, list[list[float]]]
    """Step and mean since the point before: the training loss, and norms and angles where they were logged."""
    sessions: list[dict[str, Any]]
    """When, at which commit and on which machine."""
    measures: dict[str, list[dict[str, Any]]]

    @property
    def seed(self) -> int:
        return int(self.settings["seed"])

    @property
    def counts(self) -> bool:
        return self.state == "finished"


def record(name: str, run: Path, asked: dict[str, Any], measures: dict[str, list[dict[str, Any]]]) -> Record:
    """Of a run that is over."""
    found, lines = summary(run), list(read(run / METRICS))
    told = jsons.loads((run / TRAIN).read_text())
    became = verdict(found)
    return Record(
        name=name,
        asked=asked,
        settings=found.settings,
        parameters=found.parameters,
        stream=told["stream"],
        state="finished" if became.state == "finished" else "diverged",
        step=found.step,
        seconds=round(lines[-1]["seconds"], 1) if lines else 0.0,
        warmed=became.warmed,
        ended=became.ended,
        val_loss=found.val_loss,
        bits_per_byte=found.bits_per_byte,
        accuracy=found.accuracy,
        validations=[list(one) for one in found.validations],
        curves=_curves(lines),
        sessions=[_session(one) for one in jsons.loads((run / ENVIRONMENT).read_text())],
        measures=measures,
    )


def _curves(lines: list[dict[str, Any]]) -> dict[str, list[list[float]]]:
    found: dict[str, list[list[float]]] = {}
    parts = min(_POINTS, len(lines))
    for at in range(parts):
        part = lines[len(lines) * at // parts : len(lines) * (at + 1) // parts]
        values: dict[str, list[float]] = {}
        for line in part:
            values.setdefault("loss", []).append(line["loss"])
            for what in ("norms", "angles"):
                for kind, value in line.get(what, {}).items():
                    values.setdefault(f"{what}.{kind}", []).append(value)
        for name, several in values.items():
            found.setdefault(name, []).append([part[-1]["step"], _short(statistics.mean(several))])
    return found


def _short(value: float) -> float:
    """Six digits: more would only make the file longer."""
    return float(f"{value:.6g}")


def _session(told: dict[str, Any]) -> dict[str, Any]:
    machine = told["machine"]
    return {"began": told["began"], **{name: machine[name] for name in ("commit", "cpu", "threads", "torch", "load")}}


def read_records(path: Path) -> dict[str, Record]:
    """By name; nothing if there is no file yet."""
    known = {field.name for field in fields(Record)}
    found = {}
    for number, text in enumerate(path.read_text().splitlines() if path.is_file() else [], 1):
        try:
            told = jsons.loads(text)
        except ValueError as error:
            raise DataError(f"line {number} of {path} is not JSON ({error}); remove it") from error
        if not isinstance(told, dict) or set(told) != known:
            raise DataError(f"line {number} of {path} is not the record of a run; remove it")
        found[told["name"]] = Record(**told)
    return found


def write_records(path: Path, known: Iterable[Record]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    told = ({field.name: getattr(one, field.name) for field in fields(Record)} for one in known)
    write_whole(path, "".join(json.dumps(one) + "\n" for one in told))


def refuse_another(known: Record, asked: dict[str, Any], path: Path) -> None:
    """A record of the same name must be of the same run."""
    for name in {**known.asked, **asked}:
        if known.asked.get(name) != asked.get(name):
            raise ConfigError(
                f"{path} has {known.name} with {name} {known.asked.get(name)}, and the study says {asked.get(name)}; "
                f"choose another file of records"
            )
