"""Models with every mechanism survive torch.save, pickle and deepcopy, so specs have no lambdas or closures."""

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


def save_and_load(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


COPIES: list[Callable[[nn.Module], nn.Module]] = [
    copy.deepcopy,
    lambda model: pickle.loads(pickle.dumps(model)),
    save_and_load,
]


def check_copies(model: nn.Module) -> None:
    tokens = torch.arange(6)[None]
    for copy_model in COPIES:
        copied = copy_model(model)
        assert torch.equal(copied(tokens), model(tokens))
        assert copied.config == model.config


@pytest.mark.parametrize("name", MECHANISMS.names())
def test_transformer(name: str) -> None:
    check_copies(Transformer(TransformerConfig(mechanism=name, heads=2, **SIZES)))


@pytest.mark.parametrize("options", [{}, {"position": "rope", "norm": "none", "acceptance": 0.5, "gate": False}])
def test_multiscreen(options: dict[str, object]) -> None:
    check_copies(Multiscreen(MultiscreenConfig(tiles=2, **SIZES, **options)))
