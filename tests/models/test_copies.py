"""torch.save, pickle and deepcopy of a whole model with every mechanism: lambdas and closures in a spec forbid them."""

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn

from keysift.mechanisms import MECHANISMS
from keysift.models.multiscreen import Multiscreen, MultiscreenConfig
from keysift.models.transformer import Transformer, TransformerConfig

SIZES = {"vocab_size": 11, "depth": 1, "width": 8}


def through_torch(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


COPIES: list[Callable[[nn.Module], nn.Module]] = [
    copy.deepcopy,
    lambda model: pickle.loads(pickle.dumps(model)),
    through_torch,
]


def same_after_copying(model: nn.Module) -> None:
    tokens = torch.arange(6)[None]
    for make in COPIES:
        other = make(model)
        assert torch.equal(other(tokens), model(tokens))
        assert other.config == model.config


@pytest.mark.parametrize("name", MECHANISMS.names())
def test_transformer(name: str) -> None:
    same_after_copying(Transformer(TransformerConfig(mechanism=name, heads=2, **SIZES)))


@pytest.mark.parametrize("options", [{}, {"position": "rope", "norm": "none", "acceptance": 0.5, "gate": False}])
def test_multiscreen(options: dict[str, object]) -> None:
    same_after_copying(Multiscreen(MultiscreenConfig(tiles=2, **SIZES, **options)))
