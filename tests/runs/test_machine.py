"""What every record says of the machine, and peaks that are of this world."""

import os

import pytest
import torch

from keysift.kernels import native
from keysift.runs import machine


def test_examine() -> None:
    found = machine.examine()
    assert found.cores == os.cpu_count()
    assert found.threads == torch.get_num_threads()
    assert found.instruction_set == (native.instruction_set() or "none")
    assert found.torch == torch.__version__
    assert 0.1 < found.memory_gb < 1e5
    assert found.sgemm_gflops is None, "peaks take a second, so they are asked for"


def test_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "READ_MEGABYTES", 4)
    found = machine.with_peaks(machine.examine())
    assert 0.1 < (found.sgemm_gflops or 0) < 1e6
    assert 0.01 < (found.read_gb_per_s or 0) < 1e5
    peak = machine.peak_flops(torch.device("cpu"), torch.float32)
    assert 0.1 < peak / 1e9 / (found.sgemm_gflops or 0) < 10, "MFU and benchmarks mean the same peak, busy or not"


def test_memory_counts_what_was_held() -> None:
    held = torch.ones(50, 2**20)
    assert machine.memory_bytes(torch.device("cpu")) >= held.nbytes
