"""What a report is made from, read from run directories, sweeps and benchmarks; no model is loaded."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keysift.cli.measure_runs import read_result
from keysift.core import jsons
from keysift.core.errors import DataError
from keysift.evaluate.measured_runs import Scaling, Stability
from keysift.evaluate.records import Record, read_records
from keysift.evaluate.trials import trials
from keysift.models.foreign import advice
from keysift.runs import machine
from keysift.runs.compare import short_names
from keysift.runs.layout import ENVIRONMENT, EVALS, METRICS, SAMPLES, TRAIN
from keysift.runs.metrics import last
from keysift.runs.summary import find_runs, summary
from keysift.web.report_record import Report, ReportRun, Sample

SWEEP = "sweep.json"
LONGEST_SAMPLE = 4000


def paths_of(runs: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for run in runs:
        own = find_runs(run)
        if not own:
            how = advice(run) or "name folders that keysift train or keysift sweep made"
            raise DataError(f"{run} holds no run; {how}")
        found += own
    return list(dict.fromkeys(found))


def gather(
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
    elsewhere, said = _elsewhere(records, paths)
    runs = []
    for path, name in zip(paths, short_names(list(paths)), strict=True):
        one, more = _run(path, name, elsewhere[path])
        runs.append(one)
        said += more
    parents = [path.parent for path in paths if (path.parent / SWEEP).is_file()]
    stable = [_stability(folder) for folder in dict.fromkeys([*sweeps, *parents])]
    return Report(
        title=title,
        command=command,
        date=time.strftime("%Y-%m-%d %H:%M"),
        runs=tuple(runs),
        # A sweep that the runs happen to lie in is shown if it was one over rates.
        stability=tuple(s for s in stable if len({t.rate for t in s.trials}) > 1 or s.source in map(str, sweeps)),
        scaling=tuple(_scaling(folder) for folder in sizes),
        latency=tuple(map(read_result, benchmarks)),
        notes=(*notes, *said),
    )


def _run(path: Path, name: str, more: Sequence[Record]) -> tuple[ReportRun, list[str]]:
    told, sessions, line = _json(path / TRAIN), _json(path / ENVIRONMENT), last(path / METRICS)
    about = summary(path)
    records, notes = read_records(path / EVALS)
    for one in (*records, *more):
        if one.subject.step not in (None, about.saved):
            notes.append(f"{one.made.command}: measured at step {one.subject.step}, the run is at {about.saved} now")
    first = _object(sessions[0]) if isinstance(sessions, list) and sessions else {}
    flops, tokens = told.get("flops_per_token"), about.settings.get("batch_tokens")
    return ReportRun(
        name=name,
        summary=about,
        stream=str(told.get("stream", "")),
        command=_command(first.get("command"), path),
        seconds=seconds if isinstance(seconds := line.get("seconds"), int | float) else None,
        flops=flops * tokens * about.step if isinstance(flops, float) and isinstance(tokens, int) else None,
        machine=str(_object(first.get("machine")).get("cpu", "")),
        records=(*records, *more),
        samples=tuple(
            Sample(step=int(file.stem.removeprefix("step-")), text=file.read_text(errors="replace")[:LONGEST_SAMPLE])
            for file in sorted((path / SAMPLES).glob("step-*.txt"))
            if file.stem.removeprefix("step-").isdecimal() and file.is_file()
        ),
    ), notes


def _command(argv: Any, path: Path) -> str:
    """What a user would type: the runs of a sweep were started with a file that lies beside them."""
    if isinstance(argv, list) and argv[1:2] == ["train"]:
        return shlex.join(["keysift", *map(str, argv[1:])])
    file = path.with_name(f"{path.name}.toml")
    return shlex.join(["keysift", "train", *(["--config", str(file)] if file.is_file() else []), "--out", str(path)])


def _elsewhere(folders: Sequence[Path], paths: Sequence[Path]) -> tuple[dict[Path, list[Record]], list[str]]:
    """Records of other folders, each with the run it is about."""
    found: dict[Path, list[Record]] = {path: [] for path in paths}
    notes = []
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"{folder} is no folder; --records takes folders that keysift eval --out wrote")
        records, said = read_records(folder)
        notes += said
        for record in records:
            owner = next((path for path in paths if path.resolve() == Path(record.subject.name).resolve()), None)
            if owner is None:
                notes.append(f"{folder}: a record is about {record.subject.name}, which is no run of this report")
            else:
                found[owner].append(record)
    return found, notes


def _stability(folder: Path) -> Stability:
    began = time.monotonic()
    found = trials([folder])
    command = shlex.join(["keysift", "eval", "stability", str(folder)])
    return Stability(source=str(folder), trials=found, made=machine.made(command, began))


def _scaling(folder: Path) -> Scaling:
    began = time.monotonic()
    found = trials([folder])
    command = shlex.join(["keysift", "eval", "scaling", str(folder)])
    return Scaling(source=str(folder), trials=found, made=machine.made(command, began))


def _json(path: Path) -> Any:
    try:
        return jsons.loads(path.read_bytes()) if path.is_file() else {}
    except (OSError, ValueError):
        return {}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
