"""How much memory the kernel takes beyond its inputs and outputs: python -m keysift.evaluate.memory TOKENS TILES

Measured in a process of its own, as the peak of resident memory over what was resident before the call, less the
outputs. Pages are counted, not promises: scratch that is reserved but never touched costs nothing.
"""

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from keysift.evaluate.contestants import Screening

STATUS = Path("/proc/self/status")
FORGET_PEAK = "5"  # what clear_refs reads as: let the high-water mark start anew


def measurable() -> bool:
    return STATUS.exists()


def extra_mb(tokens: int, tiles: int) -> dict[str, float]:
    """Megabytes of the forward pass that keeps what its gradient needs, and of the backward pass; initial windows."""
    command = [sys.executable, "-m", "keysift.evaluate.memory", str(tokens), str(tiles)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure(tokens: int, tiles: int) -> dict[str, float]:
    # Threads, operators and code are paid for once, on a small call.
    small = Screening(tokens=64, tiles=tiles)
    small.keep()
    small.backward()
    case = Screening(tokens=tokens, tiles=tiles)
    q, k, v, *_ = case.leaves
    forward = peak_mb(case.keep, outputs=4 * v.numel())
    return {"forward": forward, "backward": peak_mb(case.backward, outputs=4 * (q.numel() + k.numel() + v.numel()))}


def peak_mb(run: Callable[[], object], outputs: int) -> float:
    _give_back()
    _forget_peak()
    before = _resident("VmRSS")
    kept = run()
    peak = _resident("VmHWM")
    del kept
    return (peak - before - outputs) / 1e6


def _give_back() -> None:
    """Freed memory that malloc holds on to is resident already, and would hide what is taken from it again."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _forget_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text(FORGET_PEAK)
    except OSError:
        # Where that is not allowed the mark keeps an older peak: the figure can only come out too large.
        return


def _resident(field: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))
