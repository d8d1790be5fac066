"""Provenance of a measurement: CPU, software and commit. Free of torch, so that records can be read anywhere."""

import platform
import subprocess
from pathlib import Path

from keysift.core.config import config

CPUINFO = Path("/proc/cpuinfo")


@config
class Machine:
    """Hardware and software of a measurement or a training session. `keysift.runs.machine` fills it in."""

    cpu: str
    cores: int
    threads: int
    memory_gb: float
    instruction_set: str
    """Instruction set of the compiled kernel on this machine, or none."""
    python: str
    torch: str
    keysift: str
    commit: str
    load: float
    """Load average over the last minute; near zero on an idle machine."""
    sgemm_gflops: float | None = None
    """Best rate of torch's fp32 matrix product, if measured."""
    read_gb_per_s: float | None = None
    """Best rate of summing memory larger than the caches, if measured."""
    accelerator: str | None = None
    """Name of the GPU that was measured, if any."""


@config
class Provenance:
    """How a record was made."""

    command: str
    """The command that reproduces it."""
    date: str
    seconds: float
    machine: Machine


def cpu() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def cpu_vendor() -> str:
    """Vendor of an x86 processor, such as "AuthenticAMD", or "" where Linux does not tell it."""
    return _cpuinfo("vendor_id")


def _cpuinfo(name: str) -> str:
    """First value of this name in /proc/cpuinfo, or ""."""
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), "")


def commit(package: Path = Path(__file__).parents[1]) -> str:
    """Commit of the running sources. An installed copy has none, even inside another repository."""
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return "not run from a repository"
    root = Path(_git(package, "rev-parse", "--show-toplevel") or package)
    head = _git(root, "rev-parse", "HEAD") or "no commit yet"
    changed = _git(root, "status", "--porcelain", "--", "src", "csrc")
    return f"{head}, with changes" if changed else head


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", *arguments], cwd=folder, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None
