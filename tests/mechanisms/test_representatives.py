"""The few mechanisms that `make check` asks stand for all of them."""

from keysift.mechanisms import MECHANISMS, find
from tests.representatives import FEW


def test_every_rule_has_a_representative() -> None:
    assert {type(find(name).rule) for name in FEW} == {type(mechanism.rule) for mechanism in MECHANISMS}
