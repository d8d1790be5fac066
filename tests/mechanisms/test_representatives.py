"""The representative mechanisms, which `make check` tests, cover every type of rule."""

from keysift.mechanisms import MECHANISMS, find
from tests.representatives import REPRESENTATIVES


def test_every_rule_has_a_representative() -> None:
    assert {type(find(name).rule) for name in REPRESENTATIVES} == {type(mechanism.rule) for mechanism in MECHANISMS}
