"""Checks that tests of several backends share."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from keysift.kernels.attend import attend
from keysift.mechanisms.spec import Mechanism
from keysift.verify.agreement import check_agreement, draw_inputs


def agrees(backend: str, mechanism: Mechanism, queries: int, keys: int, **options: Any) -> dict[str, Tensor]:
    """Check that the output and every gradient agree with the definition, over three draws."""
    draws = [draw_inputs(mechanism, queries, keys, seed=seed) for seed in range(3)]
    return check_agreement(mechanism, *draws, backend=backend, **options)


def poison_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch.empty return NaN, so that an output entry that a kernel does not write fails its test."""
    # torch lists its constructors at the first use of a device context, once per process. If that list held `poisoned`,
    # later tests that build a model on the meta device would allocate it on the CPU.
    with torch.device("cpu"):
        torch.zeros(0)
    empty = torch.empty

    def poisoned(*shape: object, **options: object) -> Tensor:
        tensor: Tensor = empty(*shape, **options)  # type: ignore[call-overload]
        return tensor.fill_(math.nan) if tensor.dtype.is_floating_point else tensor

    monkeypatch.setattr(torch, "empty", poisoned)


def largest_saved(compute: Callable[[], Tensor]) -> int:
    """Number of elements of the largest tensor that a forward pass saves for its backward pass."""
    largest = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal largest
        largest = max(largest, tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        compute().sum().backward()
    return largest


def check_compiles(mechanism: str, backend: str) -> None:
    """Check that the call compiles to one graph, with the gradients of the eager call."""

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(mechanism, q, k, v, backend=backend).square().sum()

    actual = []
    for run in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        leaves = [
            torch.randn(1, 2, 20, 4, generator=torch.Generator().manual_seed(i)).requires_grad_() for i in range(3)
        ]
        actual.append(torch.autograd.grad(run(*leaves), leaves))
    torch.testing.assert_close(*actual)
