"""What tests of several backends ask alike."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from keysift.evaluate.agreement import draw, no_worse_than_plain
from keysift.kernels.attend import attend
from keysift.mechanisms.spec import Mechanism


def agrees(backend: str, mechanism: Mechanism, queries: int, keys: int, **options: Any) -> dict[str, Tensor]:
    """Output and every gradient are those of the definition, for three draws together."""
    draws = [draw(mechanism, queries, keys, seed=seed) for seed in range(3)]
    return no_worse_than_plain(mechanism, *draws, backend=backend, **options)


def largest_saved(compute: Callable[[], Tensor]) -> int:
    """Numbers of the largest tensor that a forward pass saves for its backward pass."""
    largest = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal largest
        largest = max(largest, tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        compute().sum().backward()
    return largest


def compiles_whole(mechanism: str, backend: str) -> None:
    """In one graph, with the gradients of the eager call."""

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(mechanism, q, k, v, backend=backend).square().sum()

    found = []
    for run in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        leaves = [
            torch.randn(1, 2, 20, 4, generator=torch.Generator().manual_seed(i)).requires_grad_() for i in range(3)
        ]
        found.append(torch.autograd.grad(run(*leaves), leaves))
    torch.testing.assert_close(*found)
