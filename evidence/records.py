"""Records of a study: one line of JSON per run, enough for every figure and table after the run directory is gone.

A run that has a record is not trained again. Reading records does not need torch.
"""

import json
import statistics
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from keysift.core import safe_json
from keysift.core.disk import write_atomic
from keysift.core.errors import ConfigError, DataError
from keysift.runs.layout import ENVIRONMENT, METRICS, TRAIN
from keysift.runs.metrics import read
from keysift.runs.summary import summary
from keysift.sweep.trials import run_outcome

_CURVE_POINTS = 32  # per curve


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run. Field names are the keys of the file."""

    name: str
    overrides: dict[str, Any]
    """Settings of the study that differ from the defaults, by the names of the flags."""
    settings: dict[str, Any]
    """All settings of the run."""
    parameters: int
    stream: str
    """Hash of the training tokens and their order."""
    state: str
    """"finished" or "diverged", by keysift.sweep.trials.run_outcome."""
    step: int
    seconds: float
    """Training time over all sessions."""
    warmup_loss: float | None
    """Training loss at the end of the warmup."""
    final_loss: float | None
    """Training loss at the end."""
    val_loss: float | None
    bits_per_byte: float | None
    accuracy: float | None
    validations: list[list[float]]
    """Step and loss."""
    curves: dict[str, list[list[float]]]
    """Step, and mean since the point before: training loss, and norms and angles of matrices where they were logged."""
    sessions: list[dict[str, Any]]
    """Start time, commit and machine of each session."""
    measures: dict[str, list[dict[str, Any]]]
    flops_per_token: float | None = None
    """FLOPs of a training step per token, as keysift.train.preflight counts them; None in early records."""

    @property
    def seed(self) -> int:
        return int(self.settings["seed"])

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    def accuracy_at(self, length: int, setting: str) -> float | None:
        """Share of correct answers at a multiple of the training length, over all depths; None if not measured."""
        cells = [c for c in self.measures.get("lengths", []) if c["ratio"] == length and c["setting"] == setting]
        return sum(cell["correct"] for cell in cells) / sum(cell["total"] for cell in cells) if cells else None

    def context_gain_at(self, length: int, setting: str) -> float | None:
        """Loss with a cut context minus loss with all of it, at a multiple of the training length; None if unknown."""
        points = (p for p in self.measures.get("context_gain", []) if (p["ratio"], p["setting"]) == (length, setting))
        return next((point["cut_nats"] - point["nats"] for point in points), None)

    @property
    def tokens(self) -> int:
        """Training tokens of the whole run."""
        return self.step * int(self.settings["batch_tokens"])

    def tokens_until(self, accuracy: float) -> int | None:
        """Training tokens before the first validation with at least this accuracy; None if there is none."""
        points = self.measures.get("accuracy_by_step", [])
        return next((int(point["tokens"]) for point in points if point["accuracy"] >= accuracy), None)


def make_record(
    name: str, run_dir: Path, settings: dict[str, Any], measures: dict[str, list[dict[str, Any]]]
) -> RunRecord:
    """The record of a run that has ended. `settings` are those that differ from the defaults."""
    run, lines = summary(run_dir), list(read(run_dir / METRICS))
    manifest = safe_json.load(run_dir / TRAIN)
    outcome = run_outcome(run)
    return RunRecord(
        name=name,
        overrides=settings,
        settings=run.settings,
        parameters=run.parameters,
        stream=manifest["stream"],
        state="finished" if outcome.state == "finished" else "diverged",
        step=run.step,
        seconds=round(lines[-1]["seconds"], 1) if lines else 0.0,
        warmup_loss=outcome.warmup_loss,
        final_loss=outcome.final_loss,
        val_loss=run.val_loss,
        bits_per_byte=run.bits_per_byte,
        accuracy=run.accuracy,
        validations=[list(validation) for validation in run.validations],
        curves=_curves(lines),
        sessions=[_session(session) for session in safe_json.load(run_dir / ENVIRONMENT)],
        measures=measures,
        flops_per_token=manifest["flops_per_token"],
    )


def _curves(lines: list[dict[str, Any]]) -> dict[str, list[list[float]]]:
    curves: dict[str, list[list[float]]] = {}
    points = min(_CURVE_POINTS, len(lines))
    for point in range(points):
        part = lines[len(lines) * point // points : len(lines) * (point + 1) // points]
        values: dict[str, list[float]] = {}
        for line in part:
            values.setdefault("loss", []).append(line["loss"])
            for quantity in ("norms", "angles"):
                for kind, value in line.get(quantity, {}).items():
                    values.setdefault(f"{quantity}.{kind}", []).append(value)
        for name, several in values.items():
            curves.setdefault(name, []).append([part[-1]["step"], _six_digits(statistics.mean(several))])
    return curves


def _six_digits(value: float) -> float:
    """More digits would only make the file longer."""
    return float(f"{value:.6g}")


def _session(session: dict[str, Any]) -> dict[str, Any]:
    machine = session["machine"]
    kept = {name: machine[name] for name in ("commit", "cpu", "threads", "torch", "load")}
    return {"began": session["began"], **kept}


def read_records(path: Path) -> dict[str, RunRecord]:
    """Records by run name; empty if the file does not exist."""
    keys = {field.name for field in fields(RunRecord)}
    required = {field.name for field in fields(RunRecord) if field.default is MISSING}
    records = {}
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines() if path.is_file() else [], 1):
        try:
            values = safe_json.loads(text)
        except ValueError as error:
            raise DataError(f"line {number} of {path} is not JSON ({error}); remove it") from error
        if not isinstance(values, dict) or not required <= set(values) <= keys:
            raise DataError(f"line {number} of {path} is not the record of a run; remove it")
        records[values["name"]] = RunRecord(**values)
    return records


def write_records(path: Path, records: Iterable[RunRecord]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ({field.name: getattr(record, field.name) for field in fields(RunRecord)} for record in records)
    write_atomic(path, "".join(json.dumps(line) + "\n" for line in lines))


def require_same_settings(record: RunRecord, settings: dict[str, Any], path: Path) -> None:
    """Raise ConfigError unless a record was made with the settings that the study has now."""
    for name in {**record.overrides, **settings}:
        if record.overrides.get(name) != settings.get(name):
            raise ConfigError(
                f"{path} has {record.name} with {name} {record.overrides.get(name)}, but the study says "
                f"{settings.get(name)}; give the changed study a folder of its own"
            )
