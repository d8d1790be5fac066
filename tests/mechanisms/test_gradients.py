"""Every differentiable input and scalar of every mechanism against finite differences, in fp64."""

import dataclasses

import pytest
import torch
from torch import Tensor

from keysift.evaluate.gradients import arguments, faults, faults_of_empty_rows
from keysift.kernels.attend import attend
from keysift.mechanisms import MECHANISMS, find
from keysift.mechanisms.rules import Pointwise
from keysift.mechanisms.spec import Mechanism
from tests.representatives import few_at_once

WRAPPED = ["screening+value_gate", "differential_v1+output_gate"]
ALL = [*MECHANISMS, *map(find, WRAPPED)]


@pytest.mark.parametrize("mechanism", few_at_once(ALL))
def test_gradcheck(mechanism: Mechanism) -> None:
    assert tuple(arguments(mechanism)) == mechanism.differentiable
    assert faults(mechanism) == []


@pytest.mark.parametrize("mechanism", ALL, ids=lambda mechanism: mechanism.name)
def test_rows_that_see_nothing_give_zeros_and_zero_gradients(mechanism: Mechanism) -> None:
    assert faults_of_empty_rows(mechanism) == []


class Wrong(torch.autograd.Function):
    """x squared, with a slope one in a hundred too large."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)  # type: ignore[attr-defined]
        return x.square()

    @staticmethod
    def backward(ctx: object, g: Tensor) -> Tensor:
        return g * 2.02 * ctx.saved_tensors[0]  # type: ignore[attr-defined]


def wrong_slope(x: Tensor, distance: Tensor, *, length: Tensor) -> Tensor:
    return Wrong.apply(x) / length.detach()


def test_faults_are_named() -> None:
    found = faults(dataclasses.replace(find("relu"), rule=Pointwise(judge=wrong_slope)))
    assert [fault.split(":")[0] for fault in found] == [
        "length has no gradient",
        "the gradient of q is not the finite difference",
        "the gradient of k is not the finite difference",
        "the gradient of length is not the finite difference",
    ]
    flat = faults(dataclasses.replace(find("relu"), flat=frozenset({"length"})))
    assert flat == ["length has a gradient although the spec lists it as flat"]


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
