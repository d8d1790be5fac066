"""Mean, standard deviation and the exponent of a power law against closed forms."""

import math

import pytest

from keysift.core.statistics import Sample, power_law_exponent, sample


def test_a_sample_has_mean_standard_deviation_and_standard_error() -> None:
    losses = Sample(values=(1.0, 2.0, 3.0, 6.0))
    assert (len(losses), losses.mean) == (4, 3.0)
    assert losses.std == pytest.approx(math.sqrt(14 / 3))
    assert losses.standard_error == pytest.approx(math.sqrt(14 / 3) / 2)


def test_a_single_value_has_no_standard_deviation() -> None:
    single = Sample(values=(2.0,))
    assert (single.mean, single.std, single.standard_error) == (2.0, None, None)


def test_missing_values_are_left_out() -> None:
    assert sample((None, 1.0, None, 2.0)) == Sample(values=(1.0, 2.0))
    assert sample((None,)) is None


def test_the_exponent_of_a_power_law_is_recovered() -> None:
    points = [(float(x), 3 * x**-0.5) for x in (1, 2, 5, 11)]
    assert power_law_exponent(points) == pytest.approx(-0.5)
    assert power_law_exponent([*points, (100.0, 0.0)]) == pytest.approx(-0.5), "a zero has no logarithm"


def test_the_exponent_needs_two_different_abscissas() -> None:
    assert math.isnan(power_law_exponent([(2.0, 1.0)]))
    assert math.isnan(power_law_exponent([(2.0, 1.0), (2.0, 3.0)]))
