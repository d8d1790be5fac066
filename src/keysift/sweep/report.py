"""Gather the records of a report from run directories, sweeps and benchmarks. No model is loaded."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keysift.core import safe_json
from keysift.core.errors import DataError
from keysift.core.regular_file import read_bytes
from keysift.models.model_type import import_advice
from keysift.records.bench import Result, read_result
from keysift.records.evaluation import Record, read_records
from keysift.records.report import Report, ReportRun, TextSample
from keysift.records.runs import RunLabel, RunSummary
from keysift.runs.compare import run_labels, short_names
from keysift.runs.layout import ENVIRONMENT, EVALS, METRICS, SAMPLES, TRAIN
from keysift.runs.metrics import last
from keysift.runs.summary import find_runs, summary
from keysift.sweep.trials import read_scaling, read_stability

SWEEP = "sweep.json"
SAMPLE_CHARACTERS = 4000


def run_directories(folders: Sequence[Path]) -> list[Path]:
    """The runs in folders that are runs or contain some, without repetition."""
    runs: list[Path] = []
    for folder in folders:
        inside = find_runs(folder)
        if not inside:
            how = import_advice(folder) or "name folders that keysift train or keysift sweep made"
            raise DataError(f"{folder} contains no run; {how}")
        runs += inside
    return list(dict.fromkeys(runs))


def gather_report(
    paths: Sequence[Path],
    *,
    title: str,
    command: str,
    records: Sequence[Path] = (),
    sweeps: Sequence[Path] = (),
    sizes: Sequence[Path] = (),
    benchmarks: Sequence[Path] = (),
    notes: Sequence[str] = (),
) -> Report:
    """Everything a report of these runs shows. Sweeps that contain the runs are included without being named."""
    other_records, warnings = _records_by_run(records, paths)
    runs = []
    summaries = [summary(path) for path in paths]
    for path, of, label in zip(paths, summaries, run_labels(summaries, short_names(list(paths))), strict=True):
        run, more = _report_run(path, of, label, other_records[path])
        runs.append(run)
        warnings += more
    parents = [path.parent for path in paths if (path.parent / SWEEP).is_file()]
    stability = [read_stability([folder]) for folder in dict.fromkeys([*sweeps, *parents])]
    return Report(
        title=title,
        command=command,
        date=time.strftime("%Y-%m-%d %H:%M"),
        runs=tuple(runs),
        # A sweep that was not named is shown if it varies the learning rate.
        stability=tuple(s for s in stability if len({t.rate for t in s.trials}) > 1 or s.source in map(str, sweeps)),
        scaling=tuple(read_scaling([folder]) for folder in sizes),
        latency=tuple(map(_model_benchmark, benchmarks)),
        notes=(*notes, *warnings),
    )


def _report_run(path: Path, run: RunSummary, label: RunLabel, more: Sequence[Record]) -> tuple[ReportRun, list[str]]:
    manifest, sessions, newest = _json(path / TRAIN), _json(path / ENVIRONMENT), last(path / METRICS)
    records, notes = read_records(path / EVALS)
    for record in (*records, *more):
        if record.subject.step not in (None, run.saved):
            notes.append(
                f"{record.made.command}: measured at step {record.subject.step}, the run is at {run.saved} now"
            )
    first = _object(sessions[0]) if isinstance(sessions, list) and sessions else {}
    flops, tokens = manifest.get("flops_per_token"), run.settings.get("batch_tokens")
    return ReportRun(
        label=label,
        summary=run,
        stream=str(manifest.get("stream", "")),
        command=_command(first.get("command"), path),
        seconds=seconds if isinstance(seconds := newest.get("seconds"), int | float) else None,
        flops=flops * tokens * run.step if isinstance(flops, float) and isinstance(tokens, int) else None,
        machine=str(_object(first.get("machine")).get("cpu", "")),
        records=(*records, *more),
        samples=tuple(
            TextSample(
                step=int(file.stem.removeprefix("step-")),
                text=read_bytes(file).decode(errors="replace")[:SAMPLE_CHARACTERS],
            )
            for file in sorted((path / SAMPLES).glob("step-*.txt"))
            if file.stem.removeprefix("step-").isdecimal() and file.is_file()
        ),
    ), notes


def _command(argv: Any, path: Path) -> str:
    """The command a user would type. Runs of a sweep are started with a config file next to their directory."""
    if isinstance(argv, list) and argv[1:2] == ["train"]:
        return shlex.join(["keysift", *map(str, argv[1:])])
    file = path.with_name(f"{path.name}.toml")
    return shlex.join(["keysift", "train", *(["--config", str(file)] if file.is_file() else []), "--out", str(path)])


def _records_by_run(folders: Sequence[Path], paths: Sequence[Path]) -> tuple[dict[Path, list[Record]], list[str]]:
    """Records of other folders by the run they describe, and a line for each that cannot be used."""
    by_run: dict[Path, list[Record]] = {path: [] for path in paths}
    notes = []
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"{folder} is not a folder; --records takes folders that keysift eval --out wrote")
        records, errors = read_records(folder)
        notes += errors
        for record in records:
            owner = next((path for path in paths if path.resolve() == Path(record.subject.name).resolve()), None)
            if owner is None:
                notes.append(f"{folder}: a record describes {record.subject.name}, which is not a run of this report")
            else:
                by_run[owner].append(record)
    return by_run, notes


def _model_benchmark(path: Path) -> Result:
    result = read_result(path)
    if result.benchmark != "models":
        raise DataError(f"{path} is keysift bench {result.benchmark}; a report shows keysift bench models")
    return result


def _json(path: Path) -> Any:
    try:
        return safe_json.load(path) if path.is_file() else {}
    except (OSError, ValueError):
        return {}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
