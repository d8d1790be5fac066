"""Promises that follow from the type of a rule, and copies of specs."""

import copy
import dataclasses
import pickle
import re
from pathlib import Path

import pytest

from keysift.mechanisms import MECHANISMS, find
from keysift.mechanisms.lookup import require_plugins
from keysift.mechanisms.rules import RowMap
from keysift.mechanisms.spec import Mechanism, Promise
from tests.refusals import refuses

ALL = [*MECHANISMS, find("screening+value_gate"), find("relu+output_head_gate+value_gate")]
every = pytest.mark.parametrize("mechanism", ALL, ids=lambda mechanism: mechanism.name)


@every
def test_rule_type_and_promises_agree(mechanism: Mechanism) -> None:
    if isinstance(mechanism.rule, RowMap):
        return
    assert mechanism.rule.absolute == (Promise.ABSOLUTE in mechanism.holds)
    assert mechanism.rule.single_pass == (Promise.SINGLE_PASS in mechanism.holds)


def test_no_shipped_mechanism_is_a_row_map() -> None:
    assert [m.name for m in MECHANISMS if isinstance(m.rule, RowMap)] == []


def test_masks_are_left_to_the_caller() -> None:
    """Only the rules, the functions in parts.py and entmax, which solves for a threshold, receive the mask."""
    folder = Path(__file__).parents[2] / "src" / "keysift" / "mechanisms"
    masking_modules = {path.stem for path in folder.glob("*.py") if re.search(r"\bkeep(_BHTS)?\b", path.read_text())}
    assert masking_modules == {"rules", "parts", "entmax"}


@every
def test_specs_can_be_copied(mechanism: Mechanism) -> None:
    assert pickle.loads(pickle.dumps(mechanism)) == mechanism
    assert copy.deepcopy(mechanism) == mechanism


def test_a_missing_plugin_is_named() -> None:
    require_plugins(["json"], "run")
    with refuses("run uses a mechanism of the module my_attention, which is not loaded; pass --plugin my_attention"):
        require_plugins(["json", "my_attention"], "run")


def test_a_mechanism_without_its_own_key_is_causal() -> None:
    with refuses("softmax: without its own key a query sees earlier keys only; set causal_only=True"):
        dataclasses.replace(find("softmax"), own_key=False)
