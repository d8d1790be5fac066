"""Machine records, and peak figures of a plausible size."""

import os

import pytest
import torch

from keysift.kernels.cpu import library
from keysift.runs import machine


def test_examine() -> None:
    record = machine.examine()
    assert record.cores == os.cpu_count()
    assert record.threads == torch.get_num_threads()
    assert record.instruction_set == (library.instruction_set() or "none")
    assert record.torch == torch.__version__
    assert 0.1 < record.memory_gb < 1e5
    assert record.sgemm_gflops is None, "peaks are measured on request only, because that takes a second"


def test_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "READ_MEGABYTES", 4)
    record = machine.with_peaks(machine.examine())
    assert 0.1 < (record.sgemm_gflops or 0) < 1e6
    assert 0.01 < (record.read_gb_per_s or 0) < 1e5
    peak = machine.peak_flops(torch.device("cpu"), torch.float32)
    assert 0.1 < peak / 1e9 / (record.sgemm_gflops or 0) < 10, "MFU and benchmarks use the same peak"


def test_memory_bytes_includes_tensors() -> None:
    tensor = torch.ones(50, 2**20)
    assert machine.memory_bytes(torch.device("cpu")) >= tensor.nbytes
