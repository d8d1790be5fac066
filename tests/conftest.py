"""For every test: one seed, and an instruction set on which bf16 works where AMX is advertised but not usable."""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import hypothesis
import pytest
import torch

# The same examples every time, and no clock: these machines are shared.
hypothesis.settings.register_profile("house", deadline=None, derandomize=True)
hypothesis.settings.load_profile("house")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
