"""Mechanisms that stand for the others in `make check`, where asking all of them would cost minutes: one of each rule.
`make test` asks every one."""

from collections.abc import Iterable
from typing import TypeVar

import pytest

from keysift.mechanisms.spec import Mechanism

FEW = {
    "softmax",
    "screening",
    "entmax15",
    "differential_v1",
    "rectified_difference",
    "softpick",
    "sigmoid_visible",
    "screening+value_gate",
}
M = TypeVar("M", Mechanism, str)


def few_at_once(mechanisms: Iterable[M]) -> list[object]:
    """Parameters of a test, by name: all but the representatives are slow."""
    named = ((one, one if isinstance(one, str) else one.name) for one in mechanisms)
    return [pytest.param(one, id=name, marks=() if name in FEW else pytest.mark.slow) for one, name in named]
