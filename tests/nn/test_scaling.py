"""Rates of RoPE, by hand; tests/hub/test_import.py compares whole models with transformers."""

import math

import pytest

from keysift.nn.scaling import rates, read_scaling
from tests.refusals import refuses

PLAIN = rates(8, 10_000.0, read_scaling("none"))


def test_unscaled_and_linear() -> None:
    assert pytest.approx([1.0, 0.1, 0.01, 0.001]) == PLAIN
    assert rates(8, 10_000.0, read_scaling("linear:factor=4")) == [rate / 4 for rate in PLAIN]


def test_llama3_keeps_the_fast_divides_the_slow_and_mixes_between() -> None:
    """In 628 positions the four pairs turn 100, 10, 1 and 0.1 times."""
    original = 2 * math.pi * 100
    found = rates(8, 10_000.0, read_scaling(f"llama3:factor=8,low=1,high=19,original={original}"))
    assert found == pytest.approx([1.0, 0.1 * (0.5 + 0.5 / 8), 0.01 / 8, 0.001 / 8])


def test_yarn_keeps_the_fast_divides_the_slow_and_stretches() -> None:
    """The pair that turns `fast` times is the first of the ramp, the one that turns `slow` times its last."""
    original = 2 * math.pi * 100
    scaling = read_scaling(f"yarn:factor=4,original={original},fast=101,slow=0.99")
    assert rates(8, 10_000.0, scaling) == pytest.approx(
        [1.0, 0.1 * (2 / 3 + 1 / 12), 0.01 * (1 / 3 + 2 / 12), 0.001 / 4]
    )
    assert scaling.length == pytest.approx(0.1 * math.log(4) + 1)
    between = read_scaling(f"yarn:factor=4,original={original},fast=10,slow=0.1,whole=0,attention=2")
    assert rates(8, 10_000.0, between) == pytest.approx([1.0, 0.1, 0.01 * (0.5 + 0.5 / 4), 0.001 / 4])
    assert between.length == 2
    assert read_scaling("yarn:factor=1,original=9").length == 1


def test_refusals() -> None:
    with refuses("RoPE is scaled by one of none, linear, llama3, yarn, got 'dynamic'"):
        read_scaling("dynamic:factor=2")
    with refuses("factor must be a number from 1e-09 to 1e.09, got 'two'"):
        read_scaling("linear:factor=two")
    with refuses("must be a number from 1e-09 to"):
        read_scaling("linear:factor=0")
    with refuses("low must be below high"):
        read_scaling("llama3:factor=8,low=4,high=4,original=100")
    with refuses("Linear needs 'factor', which is missing"):
        read_scaling("linear")
