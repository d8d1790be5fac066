"""`attend` and `explain` choose the Triton kernels, or say why not; a failure to compile falls back with a warning."""

import dataclasses
import re
from itertools import product

import pytest
import torch

from keysift.core.errors import UnsupportedError
from keysift.kernels.attend import attend, explain
from keysift.kernels.cpu import library
from keysift.kernels.gpu import availability, configurations, screening
from keysift.kernels.positions import Positions
from tests.gpu.interpreted import needs_interpreter
from tests.refusals import refuses

pytestmark = needs_interpreter


def test_is_chosen_where_the_cpu_kernel_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a CUDA device, where the CPU kernels decline by device."""
    monkeypatch.setattr(library, "DTYPES", {})
    q = torch.randn(1, 2, 8, 4)
    assert explain("screening", q, q, q).backend == "screening_gpu"
    assert explain("softpick", q, q, q).backend == "sums_gpu"
    assert explain("softmax", q, q, q).backend == "sdpa"


def test_gives_a_reason() -> None:
    q, wide = torch.randn(1, 2, 8, 4), torch.randn(1, 2, 8, 300)
    many = torch.zeros(1, 1, 1, 2).expand(1 << 6, 1 << 6, 1 << 17, 2)
    long = torch.zeros(1, 1, 1, 2).expand(1, 1, 1 << 27, 2)
    far = dataclasses.replace(Positions.counted(8), first=2**62)
    for reason, arguments, options in (
        ("torch.float64 is not supported", (q.double(),) * 3, {}),
        ("it supports key widths up to 128 and value widths up to 256, not 300 and 300", (wide,) * 3, {}),
        ("it supports 65535 heads, not 65536", (torch.zeros(1, 65536, 1, 2),) * 3, {}),
        (f"it supports fewer than {1 << 29} rows of all heads, not {1 << 29}", (many,) * 3, {}),
        (f"it supports fewer than {1 << 23} blocks of 16 tokens, not {(1 << 23) + 1}", (long,) * 3, {}),
        ("it does not support a keep mask or a bias", (q, q, q), {"keep": torch.ones(8, dtype=torch.bool)}),
        ("it never forms the weights", (q, q, q), {"return_weights": True}),
        ("queries and keys are more than 6e+17 positions apart", (q, q, q), {"positions": far}),
    ):
        with refuses(f"screening_gpu: {re.escape(reason)}", UnsupportedError):
            explain("screening", *arguments, backend="screening_gpu", **options)  # type: ignore[call-overload]


def test_programs_are_as_small_as_the_largest_grid_assumes() -> None:
    """HIP starts fewer than 2^32 threads along an axis. Its warps have 64."""
    chosen = ("forward", "split_forward", "backward_queries", "backward_keys")
    for pads, dtype, precision, choose in product(
        configurations.WIDTHS, configurations.DTYPES, ("tf32x3", "ieee"), chosen
    ):
        config = getattr(configurations, choose)(*pads, dtype, precision)
        counted = config.keys if choose == "backward_keys" else config.queries
        assert counted >= configurations.SMALLEST_BLOCK
        assert config.warps * 64 <= configurations.MOST_THREADS


def test_a_failure_to_compile_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """One warning names the device and the error; later calls are silent and give the same result."""

    def broken(*arguments: object) -> None:
        raise RuntimeError("ptxas fatal: unsupported architecture")

    monkeypatch.setattr(library, "DTYPES", {})
    monkeypatch.setattr(screening, "_probe", broken)
    q = torch.randn(1, 2, 8, 4)
    with pytest.warns(UserWarning, match=r"do not run on cpu in torch.float32 \(RuntimeError: ptxas fatal"):
        out = attend("screening", q, q, q)
    torch.testing.assert_close(out, attend("screening", q, q, q, backend="dense"))
    assert "ptxas fatal" in explain("screening", q, q, q).declined["screening_gpu"]


def test_missing_triton_or_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "DEVICE_TYPES", ["cuda"])
    reason = availability._examine()
    assert reason is None or "no CUDA or ROCm device" in reason.text
    monkeypatch.setattr(availability, "find_spec", lambda name: None)
    reason = availability._examine()
    assert reason is not None
    assert "pip install 'keysift[triton]'" in reason.text
