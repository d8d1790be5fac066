"""Nothing is timed that computes something else: the kernel against the fp64 definition, in value and every gradient.

It may err twice as much as the definition itself does in fp32, plus rounding.
"""

import math

import torch
from torch import Tensor

from keysift.core.errors import DisagreementError, UnsupportedError
from keysift.kernels import native
from keysift.kernels.attend import attend
from keysift.mechanisms.screening import SCREENING

SLACK = 2.0
ROUNDING = 2e-6  # of the largest entry; plain torch may be exact by luck
LENGTHS = (1, 63, 300)
WINDOWS = (0.9, 7.5, 257.0, math.inf)
ACCEPTANCES = (0.05, 0.5, 0.9, 0.999)


def check_kernel() -> None:
    """Raise unless the kernel runs here and agrees with the definition."""
    reason = native.unusable()
    if reason is not None:
        raise UnsupportedError(f"there is nothing to time: {reason}")
    for length in LENGTHS:
        for spread in (0.3, 3.0):
            _check(_inputs(length, spread), f"T = {length}, keys spread by {spread:g}")


def _inputs(length: int, spread: float) -> dict[str, Tensor]:
    """Around one direction, so that keys are accepted, refused and in between; four windows, four acceptances."""
    random = torch.Generator().manual_seed(length)
    tiles = len(WINDOWS)
    q, k = (1 + spread * torch.randn(2, tiles, length, 16, generator=random) for _ in range(2))
    v = torch.randn(2, tiles, length, 64, generator=random)
    return {"q": q, "k": k, "v": v, "window": torch.tensor(WINDOWS), "acceptance": torch.tensor(ACCEPTANCES)}


def _check(given: dict[str, Tensor], where: str) -> None:
    exact = _answers(given, torch.float64, "dense")
    plain = _answers(given, torch.float32, "dense")
    fast = _answers(given, torch.float32, "screening_cpu")
    for name, wanted in exact.items():
        allowed = SLACK * _error(plain[name], wanted) + ROUNDING * wanted.abs().max().item()
        found = _error(fast[name], wanted)
        if not found <= allowed:
            raise DisagreementError(
                f"the kernel's {name} is off by {found:.3g} at {where}, where {allowed:.3g} is allowed; "
                f"a wrong answer is not timed: run the tests of kernels/"
            )


def _answers(given: dict[str, Tensor], dtype: torch.dtype, backend: str) -> dict[str, Tensor]:
    cast = {name: value.to(dtype).requires_grad_() for name, value in given.items()}
    scalars = {"window": cast["window"], "acceptance": cast["acceptance"]}
    out = attend(SCREENING, cast["q"], cast["k"], cast["v"], scalars=scalars, backend=backend)
    # Differs from entry to entry, so that no gradient cancels.
    towards = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).sin().add(0.3).view(out.shape)
    grads = torch.autograd.grad(out, list(cast.values()), towards.to(dtype))
    gradients = {f"gradient of {name}": grad.double() for name, grad in zip(cast, grads, strict=True)}
    return {"output": out.detach().double(), **gradients}


def _error(found: Tensor, wanted: Tensor) -> float:
    """NaN, which compares with nothing, where an entry is NaN."""
    return (found - wanted).abs().max().item()
