"""Every differentiable input and scalar of every mechanism against finite differences, in fp64."""

import math

import pytest
import torch
from torch import Tensor

from keysift.kernels.attend import attend
from keysift.mechanisms import MECHANISMS, find
from keysift.mechanisms.spec import Mechanism

WRAPPED = ["screening+value_gate", "differential_v1+output_gate"]
ALL = [*MECHANISMS, *map(find, WRAPPED)]
SIZES = {"B": 1, "H": 2, "G": 2, "T": 4, "S": 5, "V": 3}


def arguments(mechanism: Mechanism) -> dict[str, Tensor]:
    """Away from kinks: gradcheck steps by 1e-6, and random inputs are not within that of a threshold."""
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
        # Between probes, never on one: a window that is an integer has a key exactly at its edge.
        given[scalar.name] = inner[-1] * (1 - 0.05 * torch.rand(shape, dtype=torch.float64, generator=generator))
    return {name: value.requires_grad_() for name, value in given.items()}


@pytest.mark.parametrize("mechanism", ALL, ids=lambda mechanism: mechanism.name)
def test_gradcheck(mechanism: Mechanism) -> None:
    given = arguments(mechanism)
    assert tuple(given) == mechanism.differentiable

    def run(*values: Tensor) -> Tensor:
        q, k, v, *scalars = values
        return attend(mechanism, q, k, v, scalars=dict(zip(list(given)[3:], scalars, strict=True)))

    out = run(*given.values())
    grads = torch.autograd.grad(out.square().sum(), list(given.values()), allow_unused=True)
    for name, grad in zip(given, grads, strict=True):
        moves = grad is not None and bool(grad.abs().max() > 0)
        assert moves == (name not in mechanism.flat), f"{name} {'moves' if moves else 'does not move'} the output"
    assert torch.autograd.gradcheck(run, tuple(given.values()), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("mechanism", ALL, ids=lambda mechanism: mechanism.name)
def test_rows_that_see_nothing_give_zeros_and_zero_gradients(mechanism: Mechanism) -> None:
    given = {name: value.detach().float().requires_grad_() for name, value in arguments(mechanism).items()}
    keep = torch.ones(1, 1, 4, 5, dtype=torch.bool)
    keep[:, :, 1] = False
    scalars = {name: given[name] for name in list(given)[3:]}
    out, w = attend(mechanism, given["q"], given["k"], given["v"], keep=keep, scalars=scalars, return_weights=True)
    assert (out[:, :, 1] == 0).all()
    assert (w[:, :, 1] == 0).all()
    names, values = list(given), list(given.values())
    alone = torch.autograd.grad(out[:, :, 1].sum(), values, allow_unused=True, retain_graph=True)
    for name, grad in zip(names, alone, strict=True):
        assert grad is None or (grad == 0).all(), name
    for name, grad in zip(names, torch.autograd.grad(out.sum(), values, allow_unused=True), strict=True):
        assert grad is None or grad.isfinite().all(), name


@pytest.mark.parametrize("mechanism", ALL, ids=lambda mechanism: mechanism.name)
def test_zero_inputs_do_not_explode(mechanism: Mechanism) -> None:
    """A zero query, key or value must not turn an eps into a gradient.

    Values of zero leave a norm at its own slope there, 1/sqrt(eps): at most 1e4.
    """
    for which in "qkv":
        steepest = 1e5 if which == "v" and mechanism.finish else 5e3
        given = {name: value.detach().float() for name, value in arguments(mechanism).items()}
        given[which] = torch.zeros_like(given[which])
        tensors = {name: value.requires_grad_() for name, value in given.items()}
        scalars = {name: tensors[name] for name in list(tensors)[3:]}
        attend(mechanism, tensors["q"], tensors["k"], tensors["v"], scalars=scalars).sum().backward()
        for name in "qkv":
            grad = tensors[name].grad
            assert grad is None or grad.abs().max() < steepest, (which, name)
