"""For every test: one seed, one thread, and an instruction set on which bf16 works (AMX may be advertised in vain)."""

import os
import signal

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# One test process for each core already; tests that are about threads set their own number.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest
import torch

# The same examples every time, and no clock: these machines are shared.
hypothesis.settings.register_profile("house", deadline=None, derandomize=True)
hypothesis.settings.load_profile("house")


def pytest_configure() -> None:
    # A script's background job ignores Ctrl-C and nohup a lost terminal, and so would every process that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
