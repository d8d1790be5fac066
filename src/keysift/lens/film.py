"""Film of a run: one inspection of each checkpoint, which shows how heads form during training."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from keysift.core.errors import DataError
from keysift.lens.inspection import inspect
from keysift.lens.keysift_model import open_keysift_model
from keysift.lens.model import Progress, no_progress
from keysift.records.lens import Record
from keysift.runs.layout import CHECKPOINTS, MANIFEST, checkpoint_name, checkpoint_steps, is_locked, is_run_directory

FRAMES = 12  # checkpoints of a film; together their maps are as large as those of one inspection
WAIT = 2.0  # seconds between two looks at the run


def film(
    run: Path,
    texts: Mapping[str, str],
    *,
    tokens: int | None = None,
    batch: int = 1,
    sample: int = 16,
    maps: bool = True,
    progress: Progress = no_progress,
) -> Iterator[list[Record]]:
    """Yield the records of the checkpoints so far, oldest first, whenever one is added; ends when the run has ended.

    At most FRAMES checkpoints are kept: the first, the newest, and others evenly spaced over the steps. The experiments
    on relative relevance are left out. Raises DataError if `run` is no run directory or ends without a checkpoint.
    """
    if not is_run_directory(run):
        raise DataError(f"{run} is not a run directory of keysift train; --watch shows the checkpoints of a run")
    records: dict[int, Record] = {}
    seen: set[int] = set()
    training = True
    while training:
        training = is_locked(run)  # before the checkpoints, so that the last one is not missed
        steps = [step for step in checkpoint_steps(run / CHECKPOINTS) if step not in seen]
        for step in spaced(steps):
            record = _inspect_step(run, step, texts, tokens, batch, sample, maps, progress)
            if record is not None:
                records[step] = record
                records = {kept: records[kept] for kept in spaced(sorted(records))}
                yield list(records.values())
        seen |= set(steps)
        if training:
            time.sleep(WAIT)
    if not records:
        raise DataError(f"{run} has no complete checkpoint; train it first, or name another run")


def spaced(steps: list[int]) -> list[int]:
    """At most FRAMES of the sorted steps: the first, the last, and those nearest to even distances between them."""
    if len(steps) <= FRAMES:
        return steps
    low, high = steps[0], steps[-1]
    wanted = (low + (high - low) * frame / (FRAMES - 1) for frame in range(FRAMES))
    return sorted({min(steps, key=lambda step: abs(step - at)) for at in wanted})


def _inspect_step(
    run: Path,
    step: int,
    texts: Mapping[str, str],
    tokens: int | None,
    batch: int,
    sample: int,
    maps: bool,
    progress: Progress,
) -> Record | None:
    """The record of a checkpoint, None if training removed it before it was read."""
    path = run / CHECKPOINTS / checkpoint_name(step)
    try:
        model = open_keysift_model(path)
    except (DataError, OSError):
        if (path / MANIFEST).is_file():
            raise
        return None

    record = inspect(
        model,
        texts,
        tokens=tokens,
        batch=batch,
        sample=sample,
        tests=False,
        maps=maps,
        maps_share=1 / FRAMES,
        progress=progress,
    )
    name = f"{run.resolve().name}, step {step:,}"
    return replace(record, model=replace(record.model, name=name), made={**record.made, "step": step})
