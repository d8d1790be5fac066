"""The measures of `keysift eval` that read what runs and benchmarks wrote, and no model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from keysift.bench.record import Result, Row
from keysift.cli import eval as verbs
from keysift.cli.eval_output import Measured
from keysift.core.config import load, to_dict
from keysift.core.errors import DataError
from keysift.core.provenance import Made
from keysift.evaluate.measured_runs import Scaling, Stability
from keysift.evaluate.trials import trials
from keysift.web import run_figures
from keysift.web.number import number, time

Making = Callable[[], Made]


def stability(do: verbs.Stability, making: Making) -> Measured:
    found = trials(do.folders)
    record = Stability(source=_named(do.folders), trials=found, made=making())
    return Measured(
        "stability",
        record,
        [to_dict(one) for one in found],
        f"{len(found)} runs in {record.source}",
        table=[to_dict(one) for one in record.points],
        draw=run_figures.stability(record),
    )


def scaling(do: verbs.Scaling, making: Making) -> Measured:
    found = trials(do.folders)
    record = Scaling(source=_named(do.folders), trials=found, made=making())
    return Measured(
        "scaling",
        record,
        [to_dict(one) for one in found],
        f"{len(found)} runs in {record.source}",
        table=[to_dict(one) for one in record.points],
        draw=run_figures.scaling(record),
    )


def latency(do: verbs.Latency, making: Making) -> Measured:
    """The record is the benchmark's own: it says how and where it was timed."""
    record = read_result(do.result)
    rows = [
        {
            "model": row.what,
            "step": row.step,
            "tokens": row.tokens,
            "seconds": row.seconds.median,
            "low": row.seconds.low,
            "high": row.seconds.high,
            "speedup": None if row.speedup is None else row.speedup.median,
            "against": row.against or None,
            "cache_bytes": row.cache_bytes,
        }
        for row in record.rows
    ]
    against = next((row.against for row in record.rows if row.against), "")
    return Measured(
        "latency",
        record,
        rows,
        f"{do.result}: {record.command}, {record.date}; medians{f', speedup against {against}' if against else ''}",
        table=[_short(row, against) for row in record.rows],
        draw=run_figures.latency(record),
    )


def _short(row: Row, against: str) -> dict[str, Any]:
    """What fits on 80 columns; `against` is what most rows are compared with."""
    other = f" (against {row.against})" if row.against not in ("", against) else ""
    return {
        "model": row.what + other,
        "step": {"training step": "train"}.get(row.step, row.step),
        "tokens": row.tokens,
        "time": time(row.seconds.median),
        "speedup": None if row.speedup is None else f"{number(row.speedup.median)}x",
        "cache": None if row.cache_bytes is None else _size(row.cache_bytes),
    }


def _size(count: int) -> str:
    return f"{number(count / 1e9)} GB" if count >= 1e9 else f"{number(count / 1e6)} MB"


def read_result(path: Path) -> Result:
    if not path.is_file():
        raise DataError(f"no benchmark at {path}; write one with keysift bench models --out {path}")
    found = load(Result, path)
    if found.benchmark != "models":
        raise DataError(f"{path} is keysift bench {found.benchmark}; latency is read from keysift bench models")
    return found


def _named(folders: tuple[Path, ...]) -> str:
    return ", ".join(map(str, folders))
