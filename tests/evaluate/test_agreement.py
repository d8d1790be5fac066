"""A kernel that is wrong, or not there, is not timed."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from keysift.core.errors import DisagreementError, UnsupportedError
from keysift.evaluate import agreement
from keysift.kernels import native
from keysift.kernels.attend import attend
from keysift.mechanisms.spec import Mechanism
from tests.machine import needs_kernel
from tests.refusals import refuses


@needs_kernel
def test_the_kernel_agrees() -> None:
    agreement.check_kernel()


def wrong(spoil: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def answer(*inputs: Tensor, backend: str, **options: object) -> Tensor:
        out = attend(*inputs, backend=backend, **options)  # type: ignore[arg-type,call-overload]
        return spoil(out) if backend == "screening_cpu" else out

    return answer


class Scaled(torch.autograd.Function):
    """The right value with a gradient one in a thousand too large."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, g: Tensor) -> Tensor:
        return g * 1.001


@needs_kernel
@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda out: out + 1e-4, "output"),
        (lambda out: torch.where(out == out.max(), torch.nan, out), "output"),
        (Scaled.apply, "gradient of q"),
    ],
    ids=["value", "nan", "gradient"],
)
def test_a_wrong_kernel_is_refused(
    spoil: Callable[[Tensor], Tensor], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "attend", wrong(spoil))
    message = f"the {named} of screening on screening_cpu is off by .* a wrong answer is not timed"
    with refuses(message, DisagreementError):
        agreement.check_kernel()


@needs_kernel
@pytest.mark.parametrize("which", ["v", "window", "acceptance"])
def test_each_gradient_is_compared(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = agreement.answers

    def spoiled(mechanism: Mechanism, given: dict[str, Tensor], dtype: torch.dtype, backend: str) -> dict[str, Tensor]:
        found = right(mechanism, given, dtype, backend=backend)
        if backend == "screening_cpu":
            found[f"gradient of {which}"] = found[f"gradient of {which}"] * 1.01
        return found

    monkeypatch.setattr(agreement, "answers", spoiled)
    with refuses(f"the gradient of {which} of screening on screening_cpu is off by", DisagreementError):
        agreement.check_kernel()


def test_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LIBRARY", Path("nowhere"))
    with refuses("there is nothing to time: the compiled kernel was not built", UnsupportedError):
        agreement.check_kernel()
