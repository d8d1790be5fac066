"""The blockwise backend agrees with the definition, gradients included, and skips blocks outside the window."""

import math

import pytest
import torch

from keysift.kernels.attend import attend, explain
from keysift.kernels.eager import blockwise, dense
from keysift.kernels.positions import Positions
from keysift.mechanisms import MECHANISMS, find
from keysift.mechanisms.spec import Mechanism, Promise
from keysift.verify.agreement import check_agreement, draw_inputs
from tests.kernels.checks import largest_saved
from tests.refusals import refuses

ABSOLUTE = [m for m in [*MECHANISMS, find("screening+value_gate")] if Promise.ABSOLUTE in m.holds]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockwise, "BLOCK", 16)


@pytest.mark.parametrize("mechanism", ABSOLUTE, ids=lambda mechanism: mechanism.name)
@pytest.mark.parametrize(("t", "s"), [(1, 1), (15, 15), (16, 16), (17, 17), (63, 63), (5, 40), (40, 33)])
def test_agrees(mechanism: Mechanism, t: int, s: int) -> None:
    check_agreement(mechanism, draw_inputs(mechanism, t, s), backend="blockwise")


@pytest.mark.parametrize("mechanism", ABSOLUTE, ids=lambda mechanism: mechanism.name)
def test_agrees_under_masks_and_positions(mechanism: Mechanism) -> None:
    tensors = draw_inputs(mechanism, 20, 40)
    keep = torch.rand(2, 1, 20, 40) > 0.3
    check_agreement(mechanism, tensors, backend="blockwise", keep=keep)
    check_agreement(mechanism, tensors, backend="blockwise", keep=torch.rand(40) > 0.3)
    at, key_at = torch.randint(0, 90, (2, 1, 20)), torch.randint(0, 60, (2, 4, 40))
    check_agreement(mechanism, tensors, backend="blockwise", positions=Positions.explicit(at, key_at))
    if mechanism.takes_bias:
        bias = torch.randn(4, 20, 40).masked_fill(torch.rand(4, 20, 40) > 0.8, -math.inf)
        check_agreement(mechanism, tensors, backend="blockwise", bias=bias)


def test_different_windows_per_head() -> None:
    mechanism = find("screening")
    tensors = draw_inputs(mechanism, 70, 70)
    tensors["window"] = torch.tensor([1.5, 9.0, 33.3, math.inf], dtype=torch.float64)
    check_agreement(mechanism, tensors, backend="blockwise")


def test_blocks_outside_the_window_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    heads_per_block: list[int] = []
    weigh = dense.weigh
    monkeypatch.setattr(
        dense, "weigh", lambda m, x, rows, s: heads_per_block.append(x[0].shape[1]) or weigh(m, x, rows, s)
    )
    q, k, v = (torch.randn(1, 2, 160, 4) for _ in range(3))
    attend("screening", q, k, v, scalars={"window": torch.tensor([8.0, 40.0])}, backend="blockwise")
    # Ten blocks of 16: the narrow head needs its own block and the previous one, the wide head three previous ones.
    assert sum(heads_per_block) == (10 + 9) + (10 + 9 + 8 + 7)


def test_memory_does_not_grow_with_queries_times_keys() -> None:
    q = torch.randn(1, 1, 640, 4, requires_grad=True)
    assert largest_saved(lambda: attend("relu", q, q, q, backend="blockwise")) <= 640 * 16
    assert largest_saved(lambda: attend("relu", q, q, q, backend="dense")) == 640 * 640


def test_declines_with_a_reason() -> None:
    q = torch.randn(1, 1, 8, 4)
    with refuses("softmax is not pointwise, so the outputs of key blocks do not add up"):
        attend("softmax", q, q, q, backend="blockwise")
    with refuses("it never forms all weights at once"):
        attend("relu", q, q, q, backend="blockwise", return_weights=True)
    keep = torch.ones(8, 8, dtype=torch.bool)
    assert explain("relu", q, q, q, keep=keep).declined["blockwise"] == "the call is too small to be split into blocks"


def test_is_chosen_for_large_calls() -> None:
    q, keep = torch.randn(1, 1, 600, 4), torch.ones(600, 600, dtype=torch.bool)
    assert explain("sigmoid", q, q, q, keep=keep).backend == "blockwise"
    assert explain("softpick", q, q, q, keep=keep).backend == "by_rows"
