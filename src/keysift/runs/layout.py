"""File names in a run directory (see directory.py), its newest checkpoint and its lock. Does not import torch."""

import fcntl
import os
import re
from pathlib import Path

TRAIN, ENVIRONMENT, DIAGNOSIS = "train.json", "environment.json", "diagnosis.json"
METRICS, SAMPLES, HEADS, CHECKPOINTS, LOCK = "metrics.jsonl", "samples", "heads", "checkpoints", ".lock"
EVALS = "evals"
MANIFEST, LAST = "manifest.json", "last"
FINISHED, TIME_OVER, INTERRUPTED = "finished", "time over", "interrupted"  # how a session ended
_STEP = re.compile(r"step-([0-9]{8,})")


def checkpoint_name(step: int) -> str:
    return f"step-{step:08d}"


def checkpoint_steps(checkpoints: Path) -> list[int]:
    """Steps of the complete checkpoints, oldest first. Ignores other folders, such as step-00000020.bak."""
    matches = (_STEP.fullmatch(path.parent.name) for path in checkpoints.glob(f"step-*/{MANIFEST}"))
    return sorted(int(match[1]) for match in matches if match is not None)


def newest_checkpoint(run: Path) -> Path | None:
    """The newest checkpoint of a run, None if there is none yet."""
    step = saved_step(run)
    return run / CHECKPOINTS / checkpoint_name(step) if step else None


def saved_step(run: Path) -> int:
    """Step of the newest checkpoint, 0 if there is none.

    This is the checkpoint that the link `last` points to. A process that is killed before it updates the link leaves a
    newer checkpoint; resuming the run updates the link.
    """
    try:
        linked = _STEP.fullmatch(os.readlink(run / CHECKPOINTS / LAST))
    except OSError:  # no link yet, or a copy that followed links has a folder instead
        linked = None
    steps, step = checkpoint_steps(run / CHECKPOINTS), 0 if linked is None else int(linked[1])
    return step if step in steps else max(steps, default=0)


def is_run_directory(path: Path) -> bool:
    return (path / TRAIN).is_file()


def is_locked(path: Path) -> bool:
    """Whether a process is training in this directory now."""
    if not (path / LOCK).is_file():
        return False
    with (path / LOCK).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
