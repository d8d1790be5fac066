"""A slice of the tests of the Triton kernels, if triton is installed: `make test-gpu` installs it and runs all."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from keysift.kernels.gpu import report

ROOT = Path(__file__).parent.parent.parent


def run_python(*arguments: str, **environment: str) -> None:
    """Run a process of its own: others may have imported triton, which reads TRITON_INTERPRET once."""
    command, environment = [sys.executable, *arguments], os.environ | environment
    process = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton; make test-gpu installs it")
@pytest.mark.parametrize("interpret", ["0", "1"])
def test_slice(interpret: str) -> None:
    run_python("-m", "pytest", "-q", "-n", "0", "tests/gpu", "-m", "not slow", TRITON_INTERPRET=interpret)


def test_record_of_binaries_is_current() -> None:
    """docs/results/gpu.json was made from these kernels and configurations, completely."""
    rows = report.read(ROOT / "docs" / "results" / "gpu.json")
    devices, kernels, types, widths = ({row[key] for row in rows} for key in ("device", "kernel", "dtype", "widths"))
    assert len(rows) == len(devices) * len(kernels) * len(types) * len(widths) == 4 * 7 * 2 * 4


def test_importing_keysift_does_not_import_triton() -> None:
    """With the backends registered and a call on the CPU made."""
    run_python(
        "-c",
        "import sys, torch, keysift; from keysift.kernels.attend import attend; q = torch.ones(1, 1, 2, 2); "
        "attend('screening', q, q, q); attend('softpick', q, q, q); assert 'triton' not in sys.modules",
    )
