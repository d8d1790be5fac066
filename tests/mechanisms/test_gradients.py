"""Gradients of every mechanism compared with finite differences in fp64, for every input and scalar."""

import dataclasses

import pytest
import torch
from torch import Tensor

from keysift.kernels.attend import attend
from keysift.mechanisms import MECHANISMS, find
from keysift.mechanisms.rules import Pointwise
from keysift.mechanisms.spec import Mechanism
from keysift.verify.gradients import arguments, faults, faults_of_empty_rows
from tests.representatives import slow_unless_representative

WRAPPED = ["screening+value_gate", "differential_v1+output_gate"]
ALL = [*MECHANISMS, *map(find, WRAPPED)]


@pytest.mark.parametrize("mechanism", slow_unless_representative(ALL))
def test_gradcheck(mechanism: Mechanism) -> None:
    assert tuple(arguments(mechanism)) == mechanism.differentiable
    assert faults(mechanism) == []


@pytest.mark.parametrize("mechanism", ALL, ids=lambda mechanism: mechanism.name)
def test_rows_with_no_visible_keys_give_zeros_and_zero_gradients(mechanism: Mechanism) -> None:
    assert faults_of_empty_rows(mechanism) == []


class WrongSquare(torch.autograd.Function):
    """x squared, with a gradient that is 1% too large."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)  # type: ignore[attr-defined]
        return x.square()

    @staticmethod
    def backward(ctx: object, g: Tensor) -> Tensor:
        return g * 2.02 * ctx.saved_tensors[0]  # type: ignore[attr-defined]


def wrong_slope(x: Tensor, distance: Tensor, *, length: Tensor) -> Tensor:
    return WrongSquare.apply(x) / length.detach()


def test_faults_are_named() -> None:
    result = faults(dataclasses.replace(find("relu"), rule=Pointwise(weigh_key=wrong_slope)))
    assert [fault.split(":")[0] for fault in result] == [
        "length has no gradient",
        "the gradient of q is not the finite difference",
        "the gradient of k is not the finite difference",
        "the gradient of length is not the finite difference",
    ]
    flat = faults(dataclasses.replace(find("relu"), flat=frozenset({"length"})))
    assert flat == ["length has a gradient although the spec lists it as flat"]


@pytest.mark.parametrize("mechanism", ALL, ids=lambda mechanism: mechanism.name)
def test_gradients_at_zero_inputs_are_bounded(mechanism: Mechanism) -> None:
    """A zero query, key or value must not divide a gradient by a small eps.

    With zero values the slope of an output norm is 1/sqrt(eps), at most 1e4.
    """
    for which in "qkv":
        limit = 1e5 if which == "v" and mechanism.finish else 5e3
        inputs = {name: value.detach().float() for name, value in arguments(mechanism).items()}
        inputs[which] = torch.zeros_like(inputs[which])
        tensors = {name: value.requires_grad_() for name, value in inputs.items()}
        scalars = {name: tensors[name] for name in list(tensors)[3:]}
        attend(mechanism, tensors["q"], tensors["k"], tensors["v"], scalars=scalars).sum().backward()
        for name in "qkv":
            grad = tensors[name].grad
            assert grad is None or grad.abs().max() < limit, (which, name)
