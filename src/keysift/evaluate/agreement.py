"""How a fast path is compared with the definition: value and every gradient, against the definition in fp64.

It may err twice as much as the definition itself does in the same type, plus rounding. What fails this is not timed.
"""

import math
from typing import Any

import torch
from torch import Tensor

from keysift.core.errors import DisagreementError, UnsupportedError
from keysift.evaluate.probes import Numbers
from keysift.kernels import native
from keysift.kernels.attend import attend
from keysift.mechanisms.screening import SCREENING
from keysift.mechanisms.spec import Mechanism

SLACK = 2.0
# Of the largest entry: plain torch may be exact by luck.
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
LENGTHS = (1, 63, 300)
WINDOWS = (0.5, 7.5, 257.0, math.inf)
ACCEPTANCES = (0.05, 0.5, 0.9, 0.999)

Tensors = dict[str, Tensor]


def check_kernel() -> None:
    """Raise unless the compiled kernel runs here and agrees with the definition."""
    reason = native.unusable()
    if reason is not None:
        raise UnsupportedError(f"there is nothing to time: {reason}")
    for length in LENGTHS:
        for spread in (0.3, 3.0):
            where = f"at T = {length}, keys spread by {spread:g}; a wrong answer is not timed: run tests/kernels"
            no_worse_than_plain(SCREENING, _kernel_inputs(length, spread), backend="screening_cpu", where=where)


def _kernel_inputs(length: int, spread: float) -> Tensors:
    """Around one direction, so that keys are accepted, refused and in between; four windows, four acceptances."""
    random = torch.Generator().manual_seed(length)
    tiles = len(WINDOWS)
    q, k = (1 + spread * torch.randn(2, tiles, length, 16, generator=random) for _ in range(2))
    v = torch.randn(2, tiles, length, 64, generator=random)
    return {"q": q, "k": k, "v": v, "window": torch.tensor(WINDOWS), "acceptance": torch.tensor(ACCEPTANCES)}


def draw(mechanism: Mechanism, queries: int, keys: int, *, heads: int = 4, groups: int = 2, seed: int = 0) -> Tensors:
    """q, k, v around one direction in fp64, so that screening and its kin accept many keys, and every scalar."""
    random = torch.Generator().manual_seed(seed)
    sizes = {"B": 2, "H": heads, "G": groups, "T": queries, "S": keys, "V": 5}
    centre = torch.tensor([1.0, 0.6, -0.8, 0.5], dtype=torch.float64)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=random)

    drawn = {
        "q": centre + 0.6 * normal(2, heads * mechanism.maps, queries, 4),
        "k": centre + 0.6 * normal(2, groups * mechanism.key_maps, keys, 4),
        "v": normal(2, groups, keys, 5),
    }
    for scalar in mechanism.scalars:
        if scalar.follows is None:
            shape = [sizes[axis] for axis in scalar.per.value]
            near = 0.9 + 0.1 * torch.rand(shape, dtype=torch.float64, generator=random)
            drawn[scalar.name] = scalar.probes[len(scalar.probes) // 2] * near
    return drawn


def answers(mechanism: Mechanism, given: Tensors, dtype: torch.dtype, **options: Any) -> Tensors:
    """The output and the gradient of every differentiable input, all in fp64 for comparison."""
    cast = {
        name: value.detach().to(dtype if name in "qkv" or dtype == torch.float64 else torch.float32).requires_grad_()
        for name, value in given.items()
    }
    scalars: Numbers = {name: value for name, value in cast.items() if name not in "qkv"}
    out = attend(mechanism, cast["q"], cast["k"], cast["v"], scalars=scalars, **options)
    # A fixed direction that differs from entry to entry, so that no gradient cancels.
    towards = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).sin().view(out.shape).add(0.3)
    grads = torch.autograd.grad((out.double() * towards).sum(), list(cast.values()), allow_unused=True)
    named = {
        f"gradient of {name}": torch.zeros_like(value) if grad is None else grad
        for (name, value), grad in zip(cast.items(), grads, strict=True)
    }
    return {"output": out.detach().double(), **{name: grad.double() for name, grad in named.items()}}


def no_worse_than_plain(
    mechanism: Mechanism,
    *draws: Tensors,
    backend: str,
    dtype: torch.dtype = torch.float32,
    where: str = "",
    **options: Any,
) -> Tensors:
    """Raise unless value and every gradient are near enough, the worst over all draws on both sides; the last answers.

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
            plain_error[name] = _larger(plain_error.get(name, 0.0), _error(plain[name], wanted))
            fast_error[name] = _larger(fast_error.get(name, 0.0), _error(fast[name], wanted))
            size[name] = max(size.get(name, 0.0), wanted.abs().max().item())
    for name, got in fast_error.items():
        allowed = SLACK * plain_error[name] + ROUNDING[dtype] * size[name]
        if not got <= allowed:
            raise DisagreementError(
                f"the {name} of {mechanism.name} on {backend} is off by {got:.3g}, where {allowed:.3g} is allowed"
                + (f" {where}" if where else f" (size {size[name]:.3g}); compare with backend='dense'")
            )
    return fast


def _larger(one: float, other: float) -> float:
    """The larger, or NaN if any is: NaN compares with nothing, and must not be lost."""
    return one if one != one or one > other else other


def _error(found: Tensor, wanted: Tensor) -> float:
    return (found - wanted).abs().max().item()
