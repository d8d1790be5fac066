"""The agreement check before benchmarks fails for a wrong or missing kernel."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from keysift.core.errors import DisagreementError, UnsupportedError
from keysift.kernels.attend import attend
from keysift.kernels.cpu import library
from keysift.mechanisms.spec import Mechanism
from keysift.verify import agreement
from tests.machine import needs_kernel
from tests.refusals import refuses


@needs_kernel
def test_the_kernel_passes() -> None:
    agreement.check_kernel()


def attend_with_wrong_kernel(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def wrong_attend(*inputs: Tensor, backend: str, **options: object) -> Tensor:
        out = attend(*inputs, backend=backend, **options)  # type: ignore[arg-type,call-overload]
        return change(out) if backend == "screening_cpu" else out

    return wrong_attend


class WrongGradient(torch.autograd.Function):
    """Identity whose gradient is 0.1% too large."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, g: Tensor) -> Tensor:
        return g * 1.001


@needs_kernel
@pytest.mark.parametrize(
    ("change", "quantity"),
    [
        (lambda out: out + 1e-4, "output"),
        (lambda out: torch.where(out == out.max(), torch.nan, out), "output"),
        (WrongGradient.apply, "gradient of q"),
    ],
    ids=["value", "nan", "gradient"],
)
def test_a_wrong_kernel_is_rejected(
    change: Callable[[Tensor], Tensor], quantity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "attend", attend_with_wrong_kernel(change))
    message = f"the {quantity} of screening on screening_cpu is off by .* run tests/kernels before timing it"
    with refuses(message, DisagreementError):
        agreement.check_kernel()


@needs_kernel
@pytest.mark.parametrize("name", ["v", "window", "acceptance"])
def test_each_gradient_is_compared(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    correct = agreement.output_and_gradients

    def with_wrong_gradient(
        mechanism: Mechanism, inputs: dict[str, Tensor], dtype: torch.dtype, backend: str
    ) -> dict[str, Tensor]:
        result = correct(mechanism, inputs, dtype, backend=backend)
        if backend == "screening_cpu":
            result[f"gradient of {name}"] = result[f"gradient of {name}"] * 1.01
        return result

    monkeypatch.setattr(agreement, "output_and_gradients", with_wrong_gradient)
    with refuses(f"the gradient of {name} of screening on screening_cpu is off by", DisagreementError):
        agreement.check_kernel()


def test_a_missing_kernel_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "LIBRARY", Path("nowhere"))
    with refuses("there is nothing to time: the compiled kernel was not built", UnsupportedError):
        agreement.check_kernel()
