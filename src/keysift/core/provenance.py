"""Where a figure was measured: processor, software and commit. No torch here, so records can be read anywhere."""

import platform
import subprocess
from pathlib import Path

from keysift.core.config import config

CPUINFO = Path("/proc/cpuinfo")


@config
class Machine:
    """The machine and the software of a measurement or a training session; `keysift.runs.machine` fills it in."""

    cpu: str
    cores: int
    threads: int
    memory_gb: float
    instruction_set: str
    """The variant of the compiled kernel that runs here, or none."""
    python: str
    torch: str
    keysift: str
    commit: str
    load: float
    """Processes that wanted a core in the minute before; on a quiet machine near zero."""
    sgemm_gflops: float | None = None
    """The best of torch's fp32 matrix products, where it was measured."""
    read_gb_per_s: float | None = None
    """The best of summing memory larger than the caches, where it was measured."""


@config
class Made:
    """How a record came about."""

    command: str
    """What a user types to make it again."""
    date: str
    seconds: float
    machine: Machine


def cpu() -> str:
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def commit(package: Path = Path(__file__).parents[1]) -> str:
    """Of the sources that ran; an installed copy has none, whatever repository it happens to lie in."""
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return "not run from a repository"
    root = Path(_git(package, "rev-parse", "--show-toplevel") or package)
    head = _git(root, "rev-parse", "HEAD") or "no commit yet"
    changed = _git(root, "status", "--porcelain", "--", "src", "csrc")
    return f"{head}, with changes" if changed else head


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
