"""Settings for all tests: one seed, one thread, and an instruction set on which bf16 works."""

import os
import signal
from types import SimpleNamespace

# Some virtual machines report AMX but cannot run it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# There is one test process per core. Tests about threads set their own number.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest
import torch

# The same examples in every run, and no deadline, because test machines are shared.
hypothesis.settings.register_profile("keysift", deadline=None, derandomize=True)
hypothesis.settings.load_profile("keysift")


def pytest_configure() -> None:
    # Background jobs ignore SIGINT, and jobs under nohup SIGHUP. Processes that tests start would inherit this.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def forked_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the runs of a sweep instead of starting them, which saves their imports."""
    from keysift.sweep import launch
    from tests.forked_process import ForkedProcess

    monkeypatch.setattr(launch, "subprocess", SimpleNamespace(Popen=ForkedProcess))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
