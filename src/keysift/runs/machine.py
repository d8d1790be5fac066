"""What this machine is and what it can do: facts for training sessions and benchmarks, peaks for MFU and tables."""

import os
import platform
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version

import torch

from keysift.core import provenance
from keysift.core.provenance import Machine
from keysift.kernels import native

READ_MEGABYTES = 512
ROUNDS = 8


def examine() -> Machine:
    """Everything but the peaks, which take a second to measure."""
    return Machine(
        cpu=provenance.cpu(),
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        instruction_set=native.instruction_set() or "none",
        python=platform.python_version(),
        torch=str(torch.__version__),
        keysift=version("keysift"),
        commit=provenance.commit(),
        load=round(os.getloadavg()[0], 2),
    )


def made(command: str, began: float) -> provenance.Made:
    """Of a record that is ready now; `began` is what time.monotonic() said before the work."""
    return provenance.Made(
        command=command,
        date=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        seconds=round(time.monotonic() - began, 2),
        machine=examine(),
    )


def with_peaks(machine: Machine) -> Machine:
    cpu = torch.device("cpu")
    return replace(
        machine,
        sgemm_gflops=round(product_flops(cpu, torch.float32) / 1e9, 1),
        read_gb_per_s=round(read_bytes_per_s() / 1e9, 2),
    )


def peak_flops(device: torch.device, precision: torch.dtype) -> float:
    """What a large matrix product reaches here in fp32 or in `precision`, in FLOP/s: what MFU is a share of."""
    return max(product_flops(device, dtype) for dtype in {torch.float32, precision})


def product_flops(device: torch.device, dtype: torch.dtype) -> float:
    size = 4096 if device.type == "cuda" else 1024
    left = torch.ones(size, size, device=device, dtype=dtype)
    out = torch.empty_like(left)

    def multiply() -> None:
        torch.mm(left, left, out=out)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return 2 * size**3 / _quickest(multiply)


def read_bytes_per_s() -> float:
    """Of a tensor that no cache holds."""
    x = torch.ones(READ_MEGABYTES * 2**18)
    return x.numel() * 4 / _quickest(x.sum)


def _quickest(run: Callable[[], object]) -> float:
    """Seconds; other work on the machine can only make a run slower."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    return best


def memory_bytes(device: torch.device) -> int:
    """The most memory this process has held."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
