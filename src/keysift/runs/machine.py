"""Describe this machine for training sessions and benchmarks, and measure its peak FLOP/s and memory bandwidth."""

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
from keysift.kernels.cpu import library

READ_MEGABYTES = 512
PRODUCT_SIZE = 1024  # of the square matrices of the SGEMM peak
ROUNDS = 8


def examine() -> Machine:
    """Describe the machine, without the peaks, which take a second to measure."""
    return Machine(
        cpu=provenance.cpu(),
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        instruction_set=library.instruction_set() or "none",
        python=platform.python_version(),
        torch=str(torch.__version__),
        keysift=version("keysift"),
        commit=provenance.commit(),
        load=round(os.getloadavg()[0], 2),
    )


def record_provenance(command: str, began: float) -> provenance.Provenance:
    """Provenance of a record that is complete now; `began` is time.monotonic() from before the work."""
    return provenance.Provenance(
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
    """FLOP/s of a large matrix product in fp32 or `precision`, whichever is faster: the denominator of MFU."""
    return max(product_flops(device, dtype) for dtype in {torch.float32, precision})


def product_flops(device: torch.device, dtype: torch.dtype) -> float:
    size = 4096 if device.type == "cuda" else PRODUCT_SIZE
    left = torch.ones(size, size, device=device, dtype=dtype)
    out = torch.empty_like(left)

    def multiply() -> None:
        torch.mm(left, left, out=out)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return 2 * size**3 / _fastest(multiply)


def read_bytes_per_s() -> float:
    """Bandwidth of summing a tensor larger than the caches."""
    x = torch.ones(READ_MEGABYTES * 2**18)
    return x.numel() * 4 / _fastest(x.sum)


def _fastest(run: Callable[[], object]) -> float:
    """Seconds of the fastest of several calls: other work on the machine can only slow a call down."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    return best


def memory_bytes(device: torch.device) -> int:
    """Peak memory of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
