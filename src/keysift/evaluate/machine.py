"""Facts a figure is worth nothing without: the processor, the threads, the versions, the commit."""

import os
import platform
from importlib.metadata import version

import torch

from keysift.core import provenance
from keysift.evaluate import latency
from keysift.evaluate.performance import Machine
from keysift.kernels import native


def examine() -> Machine:
    load = os.getloadavg()[0]
    return Machine(
        cpu=provenance.cpu(),
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        instruction_set=native.instruction_set() or "none",
        python=platform.python_version(),
        torch=torch.__version__,
        keysift=version("keysift"),
        commit=provenance.commit(),
        load=round(load, 2),
        sgemm_gflops=round(latency.sgemm_gflops(), 1),
        read_gb_per_s=round(latency.read_gb_per_s(), 2),
    )
