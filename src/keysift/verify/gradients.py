"""Compare the gradients of a mechanism with finite differences in fp64, for every input and scalar."""

import math

import torch
from torch import Tensor

from keysift.kernels.attend import attend
from keysift.mechanisms.spec import Mechanism

SIZES = {"B": 1, "H": 2, "G": 2, "T": 4, "S": 5, "V": 3}


def arguments(mechanism: Mechanism) -> dict[str, Tensor]:
    """Inputs and scalars away from kinks: gradcheck uses steps of 1e-6, and random inputs are farther from a kink."""
    generator = torch.Generator().manual_seed(2)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    near = draw(1, 1, 1, 4)
    given = {
        "q": near + draw(1, 2 * mechanism.maps, 4, 4),
        "k": near + draw(1, 2 * mechanism.key_maps, 5, 4),
        "v": draw(1, 2, 5, 3),
    }
    for scalar in mechanism.scalars:
        inner = [x for x in scalar.probes if math.isfinite(x) and scalar.above < x < scalar.up_to]
        shape = [SIZES[axis] for axis in scalar.per.value]
        # Between probes, never at one: an integer window has a key exactly at its edge.
        given[scalar.name] = inner[-1] * (1 - 0.05 * torch.rand(shape, dtype=torch.float64, generator=generator))
    return {name: value.requires_grad_() for name, value in given.items()}


def faults(mechanism: Mechanism) -> list[str]:
    """Descriptions of wrong gradients; an empty list if all are right."""
    given = arguments(mechanism)

    def run(*values: Tensor) -> Tensor:
        q, k, v, *scalars = values
        return attend(mechanism, q, k, v, scalars=dict(zip(list(given)[3:], scalars, strict=True)), backend="dense")

    faults = []
    grads = torch.autograd.grad(run(*given.values()).square().sum(), list(given.values()), allow_unused=True)
    for name, grad in zip(given, grads, strict=True):
        nonzero = grad is not None and bool(grad.abs().max() > 0)
        if nonzero and name in mechanism.flat:
            faults.append(f"{name} has a gradient although the spec lists it as flat")
        if not nonzero and name not in mechanism.flat:
            faults.append(f"{name} has no gradient: the output does not depend on it, or `flat` should list it")
    for name in given:
        only = {other: value if other == name else value.detach() for other, value in given.items()}
        try:
            torch.autograd.gradcheck(run, tuple(only.values()), atol=1e-6, rtol=1e-4)
        except RuntimeError as error:  # GradcheckError shows where the two Jacobians differ
            faults.append(f"the gradient of {name} is not the finite difference: {' '.join(str(error).split())[:300]}")
    return faults


def faults_of_empty_rows(mechanism: Mechanism) -> list[str]:
    """Descriptions of faults for a query with no visible keys, which must have zero output and zero gradients."""
    given = {name: value.detach().float().requires_grad_() for name, value in arguments(mechanism).items()}
    keep = torch.ones(1, 1, 4, 5, dtype=torch.bool)
    keep[:, :, 1] = False
    scalars = {name: given[name] for name in list(given)[3:]}
    out, w = attend(mechanism, given["q"], given["k"], given["v"], keep=keep, scalars=scalars, return_weights=True)
    faults = []
    if not bool((out[:, :, 1] == 0).all() and (w[:, :, 1] == 0).all()):
        faults.append("the output or the weights of a query with no visible keys are not zero")
    values = list(given.values())
    alone = torch.autograd.grad(out[:, :, 1].sum(), values, allow_unused=True, retain_graph=True)
    together = torch.autograd.grad(out.sum(), values, allow_unused=True)
    for name, of_empty_row, of_all_rows in zip(given, alone, together, strict=True):
        if of_empty_row is not None and not bool((of_empty_row == 0).all()):
            faults.append(f"a query with no visible keys has a gradient for {name}")
        if of_all_rows is not None and not bool(of_all_rows.isfinite().all()):
            faults.append(f"a query with no visible keys makes the gradient of {name} non-finite")
    return faults
