"""Frequencies of RoPE, computed by hand; tests/hub/test_import.py compares whole models with transformers."""

import math

import pytest

from keysift.nn.rope_scaling import parse_scaling, rotary_frequencies
from tests.refusals import refuses

PLAIN = rotary_frequencies(8, 10_000.0, parse_scaling("none"))


def test_unscaled_and_linear_frequencies() -> None:
    assert pytest.approx([1.0, 0.1, 0.01, 0.001]) == PLAIN
    assert rotary_frequencies(8, 10_000.0, parse_scaling("linear:factor=4")) == [rate / 4 for rate in PLAIN]


def test_llama3_frequencies() -> None:
    """In 628 positions the four pairs make 100, 10, 1 and 0.1 rotations."""
    original = 2 * math.pi * 100
    result = rotary_frequencies(8, 10_000.0, parse_scaling(f"llama3:factor=8,low=1,high=19,original={original}"))
    assert result == pytest.approx([1.0, 0.1 * (0.5 + 0.5 / 8), 0.01 / 8, 0.001 / 8])


def test_yarn_frequencies_and_attention_factor() -> None:
    """The ramp begins at the pair that makes `fast` rotations and ends at the pair that makes `slow` rotations."""
    original = 2 * math.pi * 100
    scaling = parse_scaling(f"yarn:factor=4,original={original},fast=101,slow=0.99")
    assert rotary_frequencies(8, 10_000.0, scaling) == pytest.approx(
        [1.0, 0.1 * (2 / 3 + 1 / 12), 0.01 * (1 / 3 + 2 / 12), 0.001 / 4]
    )
    assert scaling.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    between = parse_scaling(f"yarn:factor=4,original={original},fast=10,slow=0.1,whole=0,attention=2")
    assert rotary_frequencies(8, 10_000.0, between) == pytest.approx([1.0, 0.1, 0.01 * (0.5 + 0.5 / 4), 0.001 / 4])
    assert between.attention_factor == 2
    assert parse_scaling("yarn:factor=1,original=9").attention_factor == 1


def test_refusals() -> None:
    with refuses("the RoPE scaling must be one of none, linear, llama3, yarn, got 'dynamic'"):
        parse_scaling("dynamic:factor=2")
    with refuses("factor must be a number from 1e-09 to 1e.09, got 'two'"):
        parse_scaling("linear:factor=two")
    with refuses("must be a number from 1e-09 to"):
        parse_scaling("linear:factor=0")
    with refuses("low must be below high"):
        parse_scaling("llama3:factor=8,low=4,high=4,original=100")
    with refuses("Linear needs 'factor', which is missing"):
        parse_scaling("linear")
