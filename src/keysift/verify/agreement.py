"""Agreement of a backend with the dense definition, in the output and in every gradient.

The reference is the definition in fp64. A backend may have twice the error of the definition in the same dtype, plus
rounding. Benchmarks time only backends that pass.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from keysift.core.errors import DisagreementError, UnsupportedError
from keysift.kernels.attend import attend
from keysift.kernels.cpu import library
from keysift.mechanisms.screening import SCREENING
from keysift.mechanisms.spec import Mechanism
from keysift.verify.probes import ScalarValues

SLACK = 2.0
# Extra tolerance relative to the largest entry: plain torch may be exact by chance.
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
LENGTHS = (1, 63, 300)
WINDOWS = (0.5, 7.5, 257.0, math.inf)
ACCEPTANCES = (0.05, 0.5, 0.9, 0.999)
QUERIES_AND_KEYS = ((1, 9), (40, 40), (70, 70))  # a decode step, and lengths that end inside a block
DRAWS = 3

Tensors = dict[str, Tensor]


def check_kernel() -> None:
    """Raise unless the compiled screening kernel runs on this machine and agrees with the definition."""
    reason = library.unavailable()
    if reason is not None:
        raise UnsupportedError(f"there is nothing to time: {reason}")
    for length in LENGTHS:
        for spread in (0.3, 3.0):
            where = f"at T = {length}, keys spread by {spread:g}; run tests/kernels before timing it"
            check_agreement(SCREENING, _kernel_inputs(length, spread), backend="screening_cpu", where=where)


def _kernel_inputs(length: int, spread: float) -> Tensors:
    """Queries and keys around a common direction, so that some keys are accepted and some refused; four tiles."""
    random = torch.Generator().manual_seed(length)
    tiles = len(WINDOWS)
    q, k = (1 + spread * torch.randn(2, tiles, length, 16, generator=random) for _ in range(2))
    v = torch.randn(2, tiles, length, 64, generator=random)
    return {"q": q, "k": k, "v": v, "window": torch.tensor(WINDOWS), "acceptance": torch.tensor(ACCEPTANCES)}


def draw_inputs(
    mechanism: Mechanism, queries: int, keys: int, *, heads: int = 4, groups: int = 2, seed: int = 0
) -> Tensors:
    """q, k, v and all scalars in fp64. Queries and keys share a direction, so that screening accepts many keys."""
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


def output_and_gradients(mechanism: Mechanism, given: Tensors, dtype: torch.dtype, **options: Any) -> Tensors:
    """The output and the gradient of every differentiable input, computed in `dtype` and returned in fp64."""
    cast = {
        name: value.detach().to(dtype if name in "qkv" or dtype == torch.float64 else torch.float32).requires_grad_()
        for name, value in given.items()
    }
    scalars: ScalarValues = {name: value for name, value in cast.items() if name not in "qkv"}
    out = attend(mechanism, cast["q"], cast["k"], cast["v"], scalars=scalars, **options)
    # A fixed direction with different entries, so that gradients do not cancel.
    towards = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).sin().view(out.shape).add(0.3)
    grads = torch.autograd.grad((out.double() * towards.to(out.device)).sum(), list(cast.values()), allow_unused=True)
    named = {
        f"gradient of {name}": torch.zeros_like(value) if grad is None else grad
        for (name, value), grad in zip(cast.items(), grads, strict=True)
    }
    return {"output": out.detach().double(), **{name: grad.double() for name, grad in named.items()}}


def draw_several(mechanism: Mechanism, queries: int, keys: int) -> list[Tensors]:
    """Inputs with different seeds, for gradients of scalars, which plain torch may compute exactly by chance."""
    return [draw_inputs(mechanism, queries, keys, seed=seed) for seed in range(DRAWS)]


@dataclass(frozen=True)
class Errors:
    """Largest errors of one tensor against the definition in fp64, over all draws.

    plain    of the definition in the same type
    backend  of the backend
    size     largest entry of the tensor
    """

    plain: float = 0.0
    backend: float = 0.0
    size: float = 0.0

    def allowed(self, dtype: torch.dtype) -> float:
        return SLACK * self.plain + ROUNDING[dtype] * self.size


def check_agreement(
    mechanism: Mechanism,
    *draws: Tensors,
    backend: str,
    dtype: torch.dtype = torch.float32,
    where: str = "",
    **options: Any,
) -> Tensors:
    """Raise DisagreementError unless the output and every gradient of `backend` agree with the definition.

    One draw is enough for tensors. The gradient of a scalar is one number, which plain torch may compute exactly by
    chance. Returns the output and gradients of the last draw.
    """
    tensors, errors = measure_errors(mechanism, *draws, backend=backend, dtype=dtype, **options)
    for name, error in errors.items():
        allowed = error.allowed(dtype)
        if not error.backend <= allowed:
            raise DisagreementError(
                f"the {name} of {mechanism.name} on {backend} is off by {error.backend:.3g}, where {allowed:.3g} is "
                f"allowed" + (f" {where}" if where else f" (size {error.size:.3g}); compare with backend='dense'")
            )
    return tensors


def measure_errors(
    mechanism: Mechanism, *draws: Tensors, backend: str, dtype: torch.dtype = torch.float32, **options: Any
) -> tuple[Tensors, dict[str, Errors]]:
    """Output and gradients of `backend` for the last draw, and the errors of each tensor over all draws."""
    fast: Tensors = {}
    errors: dict[str, Errors] = {}
    for draw in draws:
        # Rounding the inputs is not the backend's error: the exact answer is that of the rounded inputs.
        rounded = {name: value.to(dtype) if name in "qkv" else value.float() for name, value in draw.items()}
        exact = output_and_gradients(mechanism, rounded, torch.float64, backend="dense", **options)
        plain = output_and_gradients(mechanism, rounded, dtype, backend="dense", **options)
        fast = output_and_gradients(mechanism, rounded, dtype, backend=backend, **options)
        for name, expected in exact.items():
            known = errors.get(name, Errors())
            errors[name] = Errors(
                plain=_larger(known.plain, _error(plain[name], expected)),
                backend=_larger(known.backend, _error(fast[name], expected)),
                size=max(known.size, expected.abs().max().item()),
            )
    return fast, errors


def _larger(a: float, b: float) -> float:
    """The larger number, or NaN if one of them is NaN. `max` would lose it."""
    return a if a != a or a > b else b


def _error(result: Tensor, reference: Tensor) -> float:
    return (result - reference).abs().max().item()
