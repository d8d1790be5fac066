"""The kernels for additive mechanisms, interpreted, agree with the definition in fp64: output and every gradient."""

from random import Random
from typing import Any

import pytest
import torch

from keysift.kernels.cpu.sums import KINDS
from keysift.kernels.positions import Positions
from keysift.mechanisms import MECHANISMS, find
from keysift.verify.agreement import DRAWS, check_agreement, draw_inputs, measure_errors
from tests.gpu.interpreted import needs_interpreter
from tests.kernels.checks import check_compiles, poison_outputs

BACKEND = "sums_gpu"
NAMES = [mechanism.name for mechanism in MECHANISMS if mechanism.rule in KINDS]
CASES_EACH = 6
pytestmark = needs_interpreter


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs start as NaN, so that an entry that no kernel writes fails the test."""
    poison_outputs(monkeypatch)


def _options(random: Random, queries: int) -> tuple[int, dict[str, Any]]:
    """Number of keys, and options of `attend`."""
    kind, window = random.randrange(4), random.choice((None, None, 2, 5, 20))
    if kind == 0:
        return queries + random.choice((0, 1, 40)), {"causal": False}
    if kind == 1:
        positions = Positions.packed([[queries], [1, queries - 1] if queries > 1 else [1]], queries)
        return queries, {"positions": positions, "window": window}
    if kind == 2:
        return queries, {"positions": Positions.padded([0, random.randrange(queries + 1)], queries)}
    return queries + random.choice((0, 30, 64)), {"window": window}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.slow] * (n > 0)) for n in range(CASES_EACH)])
def test_agrees_with_the_definition(name: str, seed: int) -> None:
    random = Random(f"{name} {seed}")
    queries = random.choice((2, 15, 17, 33, 64, 65))
    keys, options = _options(random, queries)
    if seed == 0:
        queries = 1  # a decode step. A single key would have a weight of one, and its query no gradient.
        keys, options = 66, {}
    mechanism = find(name)
    groups = random.choice((1, 2))
    inputs = [draw_inputs(mechanism, queries, keys, heads=2, groups=groups, seed=seed + n) for n in range(DRAWS)]
    check_agreement(mechanism, *inputs, backend=BACKEND, **options)


def test_every_kind_occurs() -> None:
    assert {kind.code for kind in KINDS.values()} >= set(range(6))


@pytest.mark.slow
def test_large_scores_do_not_overflow() -> None:
    """Softpick with scores of several hundred: sums are rescaled as the largest score grows.

    Rounding a score S changes its exponential by S 2^-24 of it. The kernel rounds scores in two blocks of different
    sizes, and the logarithm of their sum.
    """
    mechanism = find("softpick")
    draws = [draw_inputs(mechanism, 20, 20, heads=2, seed=seed) for seed in range(3)]
    for draw in draws:
        draw["q"] = 300 * draw["q"]
    largest = max(float((draw["q"] @ draw["k"].mT).max()) * draw["q"].shape[-1] ** -0.5 for draw in draws)
    assert largest > 700, "its exponential is finite in fp64, and the test shows nothing"
    _, errors = measure_errors(mechanism, *draws, backend=BACKEND, dtype=torch.float32)
    for name, error in errors.items():
        assert error.backend <= 3 * largest * 2**-24 * error.size, name


@pytest.mark.slow
def test_compiles_forward_and_backward() -> None:
    check_compiles("relu", BACKEND)


def test_operator_passes_opcheck() -> None:
    q, k, v = (torch.randn(1, heads, 9, 4, requires_grad=True) for heads in (2, 1, 1))
    inputs = (q, k, v, torch.randn(1, 2, 9, requires_grad=True), None, 0, 4, 5, 0.5, 1e-8)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.keysift.sums.default, inputs, test_utils=checks, rtol=1e-4, atol=1e-5)
