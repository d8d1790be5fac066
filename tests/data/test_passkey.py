"""Passkey texts: the number appears at its depth, and the question is at the end."""

import pytest

from keysift.data.tasks import passkey
from keysift.data.tokenizers.bytes import Bytes
from tests.refusals import refuses


def test_an_example_text() -> None:
    instance = passkey.instance(2, 0.5, digits=3)
    key = instance.answer
    assert len(key) == 3
    assert instance.prompt + key == (
        "A passkey is hidden in the text that follows. Find it and remember it.\n"
        "The grass is green. The sky is blue. The sun is bright. Here we go. There and back again.\n"
        f"The passkey is {key}. Remember it: {key} is the passkey.\n"
        "The grass is green. The sky is blue. The sun is bright. Here we go. There and back again.\n"
        f"What is the passkey? The passkey is {key}"
    )


def test_depth_moves_the_needle_and_instances_differ() -> None:
    places = [passkey.instance(50, depth).prompt.index("Remember it:") for depth in (0.0, 0.3, 0.9, 1.0)]
    assert places == sorted(set(places))
    assert len({passkey.instance(3, 0.5, number=n).answer for n in range(20)}) > 15
    assert passkey.instance(3, 0.5, number=4) == passkey.instance(3, 0.5, number=4)


@pytest.mark.parametrize("budget", [300, 1000, 4096])
def test_the_budget_is_used_up(budget: int) -> None:
    instance = passkey.within(Bytes(), budget, 0.5)
    used = len(instance.prompt) + len(instance.answer)
    assert budget - len(passkey.FILLER) < used <= budget


def test_refusals() -> None:
    with refuses("n_fillers >= 0"):
        passkey.instance(-1, 0.5)
    with refuses("from 0 to 1, got 1.5"):
        passkey.instance(1, 1.5)
    with refuses("the shortest passkey text has"):
        passkey.within(Bytes(), 20, 0.5)
