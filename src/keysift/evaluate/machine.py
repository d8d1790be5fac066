"""Facts a figure is worth nothing without: the processor, the threads, the versions, the commit."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import torch

import keysift
from keysift.evaluate import latency
from keysift.evaluate.performance import Machine
from keysift.kernels import native

CPUINFO = Path("/proc/cpuinfo")


def examine() -> Machine:
    load = os.getloadavg()[0]
    return Machine(
        cpu=cpu(),
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        instruction_set=native.instruction_set() or "none",
        python=platform.python_version(),
        torch=torch.__version__,
        keysift=version("keysift"),
        commit=commit(),
        load=round(load, 2),
        sgemm_gflops=round(latency.sgemm_gflops(), 1),
        read_gb_per_s=round(latency.read_gb_per_s(), 2),
    )


def cpu() -> str:
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def commit(package: Path = Path(keysift.__file__).parent) -> str:
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
