"""How a fast path is compared with the definition: it may err at most twice as much as plain fp32 torch does."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from keysift.kernels.attend import attend
from keysift.mechanisms.spec import Mechanism

SLACK = 2.0
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
Run = Callable[..., Tensor]


def answers(mechanism: Mechanism, given: dict[str, Tensor], dtype: torch.dtype, **options: Any) -> dict[str, Tensor]:
    """The output and the gradient of every differentiable input, all in fp64 for comparison."""
    cast = {
        name: value.detach().to(dtype if name in "qkv" or dtype == torch.float64 else torch.float32).requires_grad_()
        for name, value in given.items()
    }
    scalars = {name: value for name, value in cast.items() if name not in "qkv"}
    out = attend(mechanism, cast["q"], cast["k"], cast["v"], scalars=scalars, **options)
    # A fixed direction that differs from entry to entry, so that no gradient cancels.
    towards = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).sin().view(out.shape).add(0.3)
    grads = torch.autograd.grad((out.double() * towards).sum(), list(cast.values()), allow_unused=True)
    named = {
        name: torch.zeros_like(value) if grad is None else grad
        for (name, value), grad in zip(cast.items(), grads, strict=True)
    }
    return {"out": out.detach().double(), **{name: grad.double() for name, grad in named.items()}}


def no_worse_than_plain(
    mechanism: Mechanism, *draws: dict[str, Tensor], backend: str, dtype: torch.dtype = torch.float32, **options: Any
) -> dict[str, Tensor]:
    """Value and every gradient, the worst over all draws on both sides; returns the last fast answers.

    One draw is enough for tensors. A scalar's gradient is one number, and plain torch may hit it by luck.
    """
    plain_error: dict[str, float] = {}
    fast_error: dict[str, float] = {}
    size: dict[str, float] = {}
    for given in draws:
        # Rounding the inputs is not the backend's error: the exact answer is that of the rounded inputs.
        rounded = {name: value.to(dtype) if name in "qkv" else value.float() for name, value in given.items()}
        exact = answers(mechanism, rounded, torch.float64, backend="dense", **options)
        plain = answers(mechanism, rounded, dtype, backend="dense", **options)
        fast = answers(mechanism, rounded, dtype, backend=backend, **options)
        for name, wanted in exact.items():
            plain_error[name] = max(plain_error.get(name, 0.0), _error(plain[name], wanted))
            fast_error[name] = max(fast_error.get(name, 0.0), _error(fast[name], wanted))
            size[name] = max(size.get(name, 0.0), wanted.abs().max().item())
    for name, got in fast_error.items():
        allowed = SLACK * plain_error[name] + ROUNDING[dtype] * size[name]
        assert got <= allowed, f"{name}: off by {got:.3g}, allowed {allowed:.3g}, size {size[name]:.3g}"
    return fast


def _error(got: Tensor, wanted: Tensor) -> float:
    assert not got.isnan().any(), "an output was left unwritten"
    return (got - wanted).abs().max().item()
