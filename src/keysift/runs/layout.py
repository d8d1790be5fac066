"""Names in a run directory (see directory.py), and what they alone tell. Free of torch: lists of runs read it."""

import fcntl
import os
import re
from pathlib import Path

TRAIN, ENVIRONMENT, DIAGNOSIS = "train.json", "environment.json", "diagnosis.json"
METRICS, SAMPLES, HEADS, CHECKPOINTS, LOCK = "metrics.jsonl", "samples", "heads", "checkpoints", ".lock"
EVALS = "evals"
MANIFEST, LAST = "manifest.json", "last"
FINISHED, TIME_OVER, INTERRUPTED = "finished", "time over", "interrupted"  # how a session ends
_STEP = re.compile(r"step-([0-9]{8,})")


def name_of(step: int) -> str:
    return f"step-{step:08d}"


def steps(checkpoints: Path) -> list[int]:
    """Finished checkpoints, oldest first. A folder of another name (step-00000020.bak) is not one."""
    names = (_STEP.fullmatch(path.parent.name) for path in checkpoints.glob(f"step-*/{MANIFEST}"))
    return sorted(int(name[1]) for name in names if name is not None)


def newest(run: Path) -> Path | None:
    """The newest checkpoint of a run, None if there is none yet."""
    made = saved(run)
    return run / CHECKPOINTS / name_of(made) if made else None


def saved(run: Path) -> int:
    """Step of the newest checkpoint, 0 if there is none.

    It is the one that `last` leads to, as do the names of the model in the run itself. A newer one was written by a
    process that was killed before it moved the link; it counts once the run is resumed.
    """
    try:
        linked = _STEP.fullmatch(os.readlink(run / CHECKPOINTS / LAST))
    except OSError:  # none yet, or a folder in a copy that follows links
        linked = None
    made, step = steps(run / CHECKPOINTS), 0 if linked is None else int(linked[1])
    return step if step in made else max(made, default=0)


def holds_a_run(path: Path) -> bool:
    return (path / TRAIN).is_file()


def in_use(path: Path) -> bool:
    """Whether a process is training there now."""
    if not (path / LOCK).is_file():
        return False
    with (path / LOCK).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
