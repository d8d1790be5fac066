"""Weight decay applies to matrices only; the gradient norm covers all parameters."""

import torch
from torch import nn

from keysift.train.config import TrainConfig
from keysift.train.optimizer import adamw, gradient_norm


def test_only_matrices_decay() -> None:
    parameters = {"matrix": nn.Parameter(torch.ones(2, 2)), "vector": nn.Parameter(torch.ones(2))}
    optimizer = adamw(parameters, TrainConfig(lr=0.5, weight_decay=0.1))
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.equal(parameters["matrix"], torch.full((2, 2), 1 - 0.5 * 0.1))
    assert torch.equal(parameters["vector"], torch.ones(2))


def test_the_gradient_norm_covers_all_parameters() -> None:
    parameters = {name: nn.Parameter(torch.zeros(2)) for name in ("a", "b", "unused")}
    parameters["a"].grad, parameters["b"].grad = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0])
    assert gradient_norm(parameters) == 5.0
    parameters["b"].grad[0] = torch.nan
    assert gradient_norm(parameters) != gradient_norm(parameters), "NaN is not hidden"
