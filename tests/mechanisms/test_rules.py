"""What a rule's type says of a mechanism: the promises that follow from it, and a spec that can be copied."""

import copy
import pickle
import re
from pathlib import Path

import pytest

from keysift.mechanisms import MECHANISMS, find
from keysift.mechanisms.rules import RowMap
from keysift.mechanisms.spec import Mechanism, Promise

ALL = [*MECHANISMS, find("screening+value_gate"), find("relu+output_head_gate+value_gate")]
every = pytest.mark.parametrize("mechanism", ALL, ids=lambda mechanism: mechanism.name)


@every
def test_the_type_and_the_promises_agree(mechanism: Mechanism) -> None:
    if isinstance(mechanism.rule, RowMap):
        return
    assert mechanism.rule.absolute == (Promise.ABSOLUTE in mechanism.holds)
    assert mechanism.rule.single_pass == (Promise.SINGLE_PASS in mechanism.holds)


def test_nothing_we_ship_is_a_map_nothing_is_known_of() -> None:
    assert [m.name for m in MECHANISMS if isinstance(m.rule, RowMap)] == []


def test_masks_are_left_to_the_caller() -> None:
    """Only the rules, and the one family that must solve for a threshold, are told who takes part."""
    folder = Path(__file__).parents[2] / "src" / "keysift" / "mechanisms"
    told = {path.stem for path in folder.glob("*.py") if re.search(r"\bkeep(_BHTS)?\b", path.read_text())}
    assert told == {"rules", "parts", "entmax"}


@every
def test_specs_can_be_copied(mechanism: Mechanism) -> None:
    assert pickle.loads(pickle.dumps(mechanism)) == mechanism
    assert copy.deepcopy(mechanism) == mechanism
