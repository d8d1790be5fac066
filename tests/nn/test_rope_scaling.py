"""Frequencies of RoPE, computed by hand; tests/hub/test_import.py compares whole models with transformers."""

import math

import pytest

from keysift.nn.rope_scaling import parse_scaling, rotary_frequencies, with_original
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


def test_ntk_frequencies() -> None:
    """The base grows to 10,000 x 4^(8/6): the highest frequency stays, the lowest is divided by 4."""
    result = rotary_frequencies(8, 10_000.0, parse_scaling("ntk:factor=4"))
    assert result == pytest.approx([(10_000 * 4 ** (8 / 6)) ** -(2 * i / 8) for i in range(4)])
    assert [result[0], result[-1]] == pytest.approx([1, 0.001 / 4])
    assert rotary_frequencies(2, 10_000.0, parse_scaling("ntk:factor=4")) == [1.0]


def test_printed_and_coded_ramps_differ() -> None:
    """Channel 34 of 64 at K = 128 and a training length of 4,096 keeps 0.1254 of itself in print, 0.4615 in code."""
    plain = rotary_frequencies(128, 10_000.0, parse_scaling("none"))

    def kept(text: str) -> list[float]:
        scaled = rotary_frequencies(128, 10_000.0, parse_scaling(text))
        return [(s / p - 1 / 4) / (1 - 1 / 4) for s, p in zip(scaled, plain, strict=True)]

    printed, coded = kept("ntk_by_parts:factor=4,original=4096"), kept("yarn:factor=4,original=4096")
    assert printed[34] == pytest.approx(0.1254, abs=1e-4)
    assert coded[34] == pytest.approx(0.4615, abs=1e-4)
    assert kept("llama3:factor=4,low=1,high=32,original=4096") == printed
    rates = [(0.25 + 0.75 * c) / (0.25 + 0.75 * p) for c, p in zip(coded, printed, strict=True)]
    assert max(rates) == pytest.approx(1.73, abs=0.005)


def test_original_is_added_where_it_is_missing() -> None:
    assert with_original("yarn:factor=4", 512) == "yarn:factor=4,original=512"
    assert with_original("yarn:factor=4,original=9", 512) == "yarn:factor=4,original=9"
    assert with_original("ntk:factor=4", 512) == "ntk:factor=4"
    assert with_original("ntk_by_parts", 512) == "ntk_by_parts:original=512"


def test_refusals() -> None:
    with refuses("the RoPE scaling must be one of none, linear, ntk, llama3, ntk_by_parts, yarn, got 'dynamic'"):
        parse_scaling("dynamic:factor=2")
    with refuses("factor must be a number from 1e-09 to 1e.09, got 'two'"):
        parse_scaling("linear:factor=two")
    with refuses("must be a number from 1e-09 to"):
        parse_scaling("linear:factor=0")
    with refuses("low must be below high"):
        parse_scaling("llama3:factor=8,low=4,high=4,original=100")
    with refuses("Linear needs 'factor', which is missing"):
        parse_scaling("linear")
