"""The same key with different competitors: weights, and marks of weights that changed."""

import pytest

from keysift.mechanisms import MECHANISMS
from keysift.verify.competitors import CONTEXTS, context_experiment

ROWS = {row.mechanism: row for row in context_experiment().rows}


def test_every_mechanism_has_a_row() -> None:
    assert list(ROWS) == MECHANISMS.names()


def test_softmax_weights() -> None:
    two, three = ROWS["softmax"].weights[:2]
    assert two == pytest.approx([0.731, 0.269], abs=5e-4)
    assert three == pytest.approx([0.629, 0.231, 0.140], abs=5e-4)


@pytest.mark.parametrize("name", ROWS)
def test_only_relative_weights_move(name: str) -> None:
    """In the second context the first two keys keep their scores and a third key is added."""
    row = ROWS[name]
    changed = [old != pytest.approx(new, abs=1e-9) for old, new in zip(row.weights[0], row.weights[1], strict=False)]
    assert list(row.moved[1]) == [*changed, False]
    assert not (row.absolute and any(row.moved[1]))
    assert not any(row.moved[0]), "the first context has no predecessor"
    assert [len(marks) for marks in row.moved] == [len(context.scores) for context in CONTEXTS]
