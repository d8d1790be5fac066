"""Representative mechanisms, at least one for each type of rule. `make check` tests only these, `make test` all."""

from collections.abc import Iterable
from typing import TypeVar

import pytest

from keysift.mechanisms.spec import Mechanism

REPRESENTATIVES = {
    "softmax",
    "screening",
    "entmax15",
    "differential_v1",
    "elastic_softmax",
    "heaviside_gate",
    "lssar",
    "softpick",
    "sigmoid_visible",
    "stick_breaking",
    "screening+value_gate",
}
M = TypeVar("M", Mechanism, str)


def slow_unless_representative(mechanisms: Iterable[M]) -> list[object]:
    """Test parameters with the mechanism's name as id. All but the representatives are marked slow."""
    named = ((mechanism, mechanism if isinstance(mechanism, str) else mechanism.name) for mechanism in mechanisms)
    return [
        pytest.param(mechanism, id=name, marks=() if name in REPRESENTATIVES else pytest.mark.slow)
        for mechanism, name in named
    ]
