"""The rectified_cpu backend agrees with the definition, gradients included, for every kind of positions."""

import ctypes
from functools import partial

import pytest
import torch

from keysift.kernels.attend import attend, explain
from keysift.kernels.cpu import library
from keysift.kernels.cpu import rectified as rectified_cpu
from keysift.kernels.cpu.library import View
from keysift.kernels.cpu.sums import RECTIFIED, Inputs, problem_of
from keysift.kernels.positions import Positions
from keysift.mechanisms import MECHANISMS
from keysift.mechanisms.spec import Mechanism
from keysift.verify.agreement import check_agreement, draw_inputs
from tests.kernels import checks
from tests.kernels.checks import check_compiles, largest_saved, poison_outputs
from tests.machine import needs_kernel
from tests.refusals import refuses

pytestmark = needs_kernel
every = pytest.mark.parametrize("mechanism", [m for m in MECHANISMS if m.rule in rectified_cpu.RULES])
agrees = partial(checks.agrees, "rectified_cpu")


@every
def test_lengths_and_positions(mechanism: Mechanism, monkeypatch: pytest.MonkeyPatch) -> None:
    poison_outputs(monkeypatch)
    for t, s in ((2, 2), (1, 130), (40, 33), (65, 65), (300, 340)):
        agrees(mechanism, t, s)
    agrees(mechanism, 90, 90, positions=Positions.packed([[3, 80, 7], [60]], 90))
    agrees(mechanism, 20, 20, positions=Positions.padded([20, 3], 20))
    cached = Positions.padded([1, 0], 4, start=[11, 26]).with_cached_keys([0, 0], [14, 30], 30)
    agrees(mechanism, 4, 30, positions=cached)
    agrees(mechanism, 20, 60, window=25)
    agrees(mechanism, 300, 300, window=40)


@pytest.mark.parametrize("size", [-100.0, 100.0])
def test_large_scores_lose_nothing(size: float) -> None:
    mechanism = MECHANISMS.find("elastic_softmax")
    draws = [draw_inputs(mechanism, 90, 90, seed=seed) for seed in range(5)]
    for tensors in draws:
        tensors["q"][..., 0], tensors["k"][..., 0] = 2.0, size  # the scale is 1/2
    check_agreement(mechanism, *draws, backend="rectified_cpu")


def test_it_is_chosen_compiles_and_saves_no_map() -> None:
    q, k, v = (torch.randn(1, 2, 600, 8, requires_grad=True) for _ in range(3))
    assert explain("elastic_softmax", q, k, v).backend == "rectified_cpu"
    assert "does not implement sparsemax" in explain("sparsemax", q, k, v).declined["rectified_cpu"]
    assert largest_saved(lambda: attend("elastic_softmax", q, k, v)) == q.numel()
    check_compiles("elastic_softmax", "rectified_cpu")


def test_the_library_refuses_calls_without_levels() -> None:
    x = torch.randn(1, 2, 3, 4)
    inputs = Inputs(x, x, x, None, None, 0, 0, RECTIFIED, 1.0, 0.0)
    with refuses("rejected the call: levels must not be NULL"):
        rectified_cpu._forward(inputs, with_gradients=False)
    level = torch.zeros(1, 2, 3)
    problem = problem_of(inputs._replace(shift=level))
    assert library.load().keysift_sums_forward(ctypes.byref(problem), ctypes.byref(View.of(x)), None, None) == 0
