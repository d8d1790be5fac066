"""Fixtures for every test: one seed, and the CPU features bf16 needs on machines that advertise AMX but cannot use it."""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
