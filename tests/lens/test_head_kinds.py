"""Every kind of head is found in a hand-made model that has exactly that head, and in no other."""

import pytest
import torch
from torch import Tensor

from keysift.lens.inspection import inspect
from keysift.records.head_kinds import ALL_KINDS, KINDS, closest, head_kinds
from tests.lens import hand_made
from tests.lens.hand_made import HandMade
from tests.lens.models import LINE


def small_first(ids: Tensor) -> Tensor:
    values = torch.eye(len(ids), 512)
    values[0] *= 0.01
    return values


def same_everywhere(ids: Tensor) -> Tensor:
    """The first value is long, so every output is nearly the same vector."""
    values = torch.eye(len(ids), 512)
    values[0] *= 5
    return values


def test_each_rule_has_its_kind_and_no_other() -> None:
    rules = {
        "no-op sink": hand_made.first,
        "broadcast sink": hand_made.first,
        "previous token": hand_made.previous,
        "own token": hand_made.own,
        "uniform": hand_made.uniform,
        "duplicate token": hand_made.duplicate,
        "induction": hand_made.induction,
        "focused": hand_made.middle,
    }
    model = HandMade(list(rules.values()), values={0: small_first, 1: same_everywhere})
    text = "abcdefghijklmnopqrstuvwxyz" * 3  # long repeats, so that copying heads rarely rest on the first key
    record = inspect(model, [text], tests=False)
    for head, name in zip(record.heads, rules, strict=True):
        assert head.kinds == (name,), head.label
    by_name = {kind.name: kind for kind in ALL_KINDS}
    values = {name: head.values for name, head in zip(rules, record.heads, strict=True)}
    assert values["induction"]["induction_mass"] == pytest.approx(1, abs=0.03)
    assert values["induction"]["duplicate_mass"] == pytest.approx(0, abs=0.03)
    assert values["duplicate token"]["duplicate_mass"] == pytest.approx(1, abs=1e-3)
    assert values["no-op sink"]["first_value_norm"] == pytest.approx(0.01)
    assert values["broadcast sink"]["output_rank"] == pytest.approx(1, abs=1e-3)
    for name in rules:
        best = closest(record.heads, by_name[name])
        assert best is not None
        assert best[1] > by_name[name].limit
    assert closest([], by_name["sink"]) is None


def test_threshold_heads() -> None:
    record = inspect(HandMade([hand_made.previous], "relu_exp"), [LINE], tests=False)
    assert "threshold" in record.heads[0].kinds


def test_a_score_at_its_limit_is_not_enough() -> None:
    for kind in KINDS:
        if kind.name != "threshold":
            assert kind.name not in head_kinds({kind.score: kind.limit})
            assert kind.name in head_kinds({kind.score: kind.limit + 1e-6})
    assert head_kinds({"first_mass": 0.9}) == ("sink",), "without the values of the first token"
    assert head_kinds({}) == ()
