"""Promises that follow from the type of a rule, and copies of specs."""

import copy
import dataclasses
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from keysift.core.errors import UnsupportedError
from keysift.kernels.attend import BACKENDS, attend
from keysift.kernels.positions import Positions
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


@pytest.mark.parametrize("name", ["softmax", "relu_squared", "entmax15", "tra", "elastic_softmax"])
def test_a_mechanism_of_a_user_leaves_out_the_own_key(name: str) -> None:
    """Of a rule of any type, on every backend that takes it: the mask without the diagonal, and an empty first row."""
    own = dataclasses.replace(find(name), name="strictly_earlier", own_key=False, causal_only=True)
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 40, 4, generator=random) for _ in range(3))
    earlier = torch.ones(40, 40, dtype=torch.bool).tril(-1)
    expected = attend(name, q, k, v, keep=earlier, causal=False, backend="dense")
    ran = 0
    for backend in BACKENDS.names():
        try:
            out = attend(own, q, k, v, backend=backend)
        except UnsupportedError:
            continue
        ran += 1
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)
        assert not out[:, :, 0].any()
    assert ran >= 3, "dense, by_rows and a faster one"


def sticks_by_hand(x: Tensor, keep: Tensor, distance: Tensor) -> Tensor:
    """Stick-breaking without the own key, as a user writes it."""
    older = keep & (distance > 0)
    log_left = torch.where(older, F.logsigmoid(-x), 0.0)
    newer = log_left.flip(-1).cumsum(-1).flip(-1) - log_left
    return torch.where(older, (F.logsigmoid(x) + newer).exp(), 0.0)


@pytest.mark.parametrize("queries", [1, 4, 9])
def test_a_row_map_of_a_user_sees_distances(queries: int) -> None:
    """Its order and its own key, in whole texts, cached steps, windows and padded rows."""
    known = find("stick_breaking")
    rule = RowMap(weigh_row=sticks_by_hand, distances=True)
    own = dataclasses.replace(known, name="own_sticks", rule=rule, own_key=True)
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, n, 4, generator=random, dtype=torch.float64) for n in (queries, 9, 9))
    options: list[dict[str, Any]] = [{}, {"window": 4}]
    if queries == 9:
        options += [{"positions": Positions.padded([4, 0], 9)}, {"positions": Positions.packed([[5, 4], [9]])}]
    for each in options:
        torch.testing.assert_close(attend(own, q, k, v, **each), attend(known, q, k, v, **each))
    assert attend(own, q, k, v).abs().amax() > 0.1
