"""Names in a run directory (see run.py), and what they alone tell. Free of torch: lists of runs read it."""

import fcntl
from pathlib import Path

TRAIN, ENVIRONMENT, DIAGNOSIS = "train.json", "environment.json", "diagnosis.json"
METRICS, SAMPLES, CHECKPOINTS, LOCK = "metrics.jsonl", "samples", "checkpoints", ".lock"
MANIFEST = "manifest.json"


def name_of(step: int) -> str:
    return f"step-{step:08d}"


def steps(checkpoints: Path) -> list[int]:
    """Finished checkpoints, oldest first."""
    return sorted(int(path.parent.name.removeprefix("step-")) for path in checkpoints.glob(f"step-*/{MANIFEST}"))


def saved(run: Path) -> int:
    """Step of the newest checkpoint, 0 if there is none."""
    return max(steps(run / CHECKPOINTS), default=0)


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
