"""Golden values: weights computed by hand from the formulas, to six digits."""

import dataclasses
import math

import pytest
import torch

from keysift.kernels.attend import attend
from keysift.kernels.weigh import weigh
from keysift.mechanisms import find, screening
from keysift.mechanisms.rules import AboveMean
from keysift.mechanisms.stick_breaking import variant

SCORES = [2.0, 1.0, 0.5, -1.0]
SECOND_SCORES = [0.0, 1.0, 0.0, 0.5]  # second map of the differential family

CASES = [
    ("softmax", {}, [0.609460, 0.224208, 0.135989, 0.030343]),
    ("differential_v1", {"lam": 0.5}, [0.530930, 0.010741, 0.057459, -0.099131]),
    ("differential_v2", {"lam": 0.5}, [0.530930, 0.010741, 0.057459, -0.099131]),
    ("rectified_difference", {"lam": 0.5}, [0.530930, 0.010741, 0.057459, 0]),
    ("rectified_difference", {"lam": 1.2}, [0.420988, 0, 0, 0]),
    ("rectified_difference_min", {"lam": 0.5}, [0, 0, 0, -0.099131]),
    ("heaviside_gate", {"lam": 0.5}, [0.609460, 0.224208, 0.135989, 0]),
    ("heaviside_literal", {"lam": 0.5}, [0.109460, -0.275792, -0.364011, 0.030343]),
    ("heaviside_constant", {"lam": 0.5}, [0.109460, -0.275792, -0.364011, -0.469657]),
    ("softmax_minus_constant", {"gain": 2.0, "c": 0.5}, [0.218920, -0.551584, -0.728022, -0.939314]),
    ("relu_exp", {}, [6.389056, 1.718282, 0.648721, 0]),
    ("relu_exp_normalised", {}, [0.729673, 0.196239, 0.074088, 0]),
    ("softpick", {}, [0.680543, 0.183026, 0.069100, 0]),
    ("sparsemax", {}, [1, 0, 0, 0]),
    ("entmax15", {}, [0.814649, 0.162070, 0.023280, 0]),
    ("alpha_entmax", {"alpha": 1.25}, [0.712040, 0.199831, 0.087320, 0.000808]),
    ("softmax1", {}, [0.563021, 0.207124, 0.125627, 0.028031]),
    ("softmax_sink", {"sink": 0.7}, [0.522649, 0.192272, 0.116619, 0.026021]),
    ("sigmoid", {"bias": -math.log(4)}, [0.648786, 0.404610, 0.291875, 0.084224]),
    ("sigmoid_visible", {}, [0.648786, 0.404610, 0.291875, 0.084224]),
    ("relu", {"length": 4.0}, [0.5, 0.25, 0.125, 0]),
    ("relu_visible", {}, [0.5, 0.25, 0.125, 0]),
    ("relu_squared", {"length": 4.0}, [1, 0.25, 0.0625, 0]),
    ("rela", {}, [2, 1, 0.5, 0]),
    ("stick_breaking", {}, [0.065381, 0.201775, 0.455054, 0.268941]),
    ("stick_breaking_own_key", {}, [0.065381, 0.201775, 0.455054, 0.268941]),
    ("stick_breaking_learned", {"rest": 0.5}, [0.065381, 0.201775, 0.455054, 0.268941]),
    ("stick_breaking_rest", {}, [0.089433, 0.276004, 0.622459, 0.012103]),
    ("ssmax", {"sharpness": 0.43}, [0.470114, 0.259010, 0.192254, 0.078622]),
    ("elastic_softmax", {"tau": -1.0}, [0.359460, 0, 0, 0]),
    ("elastic_softmax", {"tau": -0.5}, [0.484460, 0.099208, 0.010989, 0]),
    ("elastic_softmax", {"tau": -3.0}, [0, 0, 0, 0]),
    ("clipped_softmax", {"gamma": -0.1}, [0.570406, 0.146629, 0.049588, 0]),
    ("asentmax", {"strength": 0.3, "growth": 1.0}, [0.946438, 0.053562, 0, 0]),
    ("asentmax", {}, [0.979514, 0.020486, 0, 0]),  # the initial factor is 1 + log 2
    ("asentmax", {"strength": 0.3, "growth": -1.0}, [0.879101, 0.118614, 0.002285, 0]),
    ("null_value", {"null_logit": 0.7}, [0.522649, 0.192272, 0.116619, 0.026021]),
]
COSINES, SECOND_COSINES = [0.8, 0.5, 0.2, -0.1], [0.1, 0.6, 0.3, 0.0]
COSINE_CASES = [
    ("tra", {"width": 64.0}, [0.350300, 0.085183, 0, 0]),
    ("tda", {"width": 64.0, "lam": 0.5}, [0.350300, 0.008405, -0.004219, 0]),
    ("lssar", {"width": 64.0, "power": 3.0}, [0.983549, 0.016451, 0, 0]),
]
UNBOUNDED_CASES = [  # of the same formulas, for numbers that are not cosines
    ("tra", {"width": 4.0}, SCORES, [1.362929, 0.028038, 0, 0]),
    ("tda", {"width": 4.0, "lam": 0.5}, SCORES, [1.362929, 0.014019, 0, 0]),
    # A width at which the factor log(K) log(n) is 1.
    ("lssar", {"width": math.exp(1 / math.log(4)), "power": 3.0}, SCORES, [0.997320, 0.002680, 0, 0]),
    ("lssar", {"width": math.exp(1 / math.log(3)), "power": 3.0}, SCORES[:3], [0.751061, 0.176795, 0.072143]),
]


@pytest.mark.parametrize(
    ("name", "scalars", "expected"), CASES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_scores_to_weights(name: str, scalars: dict[str, float], expected: list[float]) -> None:
    scores, second = torch.tensor(SCORES, dtype=torch.float64), torch.tensor(SECOND_SCORES, dtype=torch.float64)
    weights = weigh(name, scores, second=second, scalars=scalars)
    assert weights.tolist() == pytest.approx(expected, abs=6e-7)
    assert [w == 0 for w in weights.tolist()] == [w == 0 for w in expected], "zeros are exact, and only where expected"


@pytest.mark.parametrize(("name", "scalars", "expected"), COSINE_CASES)
def test_cosines_to_weights(name: str, scalars: dict[str, float], expected: list[float]) -> None:
    cosines, second = (torch.tensor(x, dtype=torch.float64) for x in (COSINES, SECOND_COSINES))
    weights = weigh(name, cosines, second=second, scalars=scalars)
    assert weights.tolist() == pytest.approx(expected, abs=6e-7)
    assert [w == 0 for w in weights.tolist()] == [w == 0 for w in expected]


@pytest.mark.parametrize(("name", "scalars", "scores", "expected"), UNBOUNDED_CASES)
def test_formulas_of_cosines(name: str, scalars: dict[str, float], scores: list[float], expected: list[float]) -> None:
    unbounded = dataclasses.replace(find(name), name=f"unbounded_{name}", cosine_scores=False)
    x, y = (torch.tensor(row[: len(scores)], dtype=torch.float64) for row in (scores, SECOND_SCORES))
    assert weigh(unbounded, x, second=y, scalars=scalars).tolist() == pytest.approx(expected, abs=6e-7)


def nothing(count: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(count)


def test_lssar_without_its_offset() -> None:
    """The shares of softplus that LSSAR reweights (LSSA)."""
    lssar = find("lssar")
    assert isinstance(lssar.rule, AboveMean)
    rule = dataclasses.replace(lssar.rule, offset=nothing)
    shares = dataclasses.replace(lssar, name="lssa", rule=rule, cosine_scores=False)
    given = {"width": math.exp(1 / math.log(4)), "power": 1.0}
    weights = weigh(shares, torch.tensor(SCORES, dtype=torch.float64), scalars=given)
    assert weights.tolist() == pytest.approx([0.449903, 0.277790, 0.206044, 0.066263], abs=6e-7)


def test_rest_of_stick_breaking() -> None:
    """The own key takes 0.268941 and, besides, the rest of 0.008848."""
    weights = weigh(variant(rest="own", own_key=True), torch.tensor(SCORES, dtype=torch.float64))
    assert weights.tolist() == pytest.approx([0.065381, 0.201775, 0.455054, 0.277790], abs=6e-7)


def test_weight_of_a_null_key() -> None:
    """With values of 0 and a null value of 1 the output is the weight of the null key."""
    q, k, v = torch.ones(1, 1, 1, 1), torch.tensor(SCORES).view(1, 1, 4, 1), torch.zeros(1, 1, 4, 1)
    given = {"null_logit": torch.tensor(0.7), "null_value": torch.tensor(1.0)}
    for backend in ("sdpa", "by_rows", "dense"):
        out = attend("null_value", q, k, v, scale=1.0, scalars=given, backend=backend)
        assert out.item() == pytest.approx(0.142439, abs=6e-7)


def test_published_entmax_example() -> None:
    x = torch.tensor([-2.0, 0.0, 0.5], dtype=torch.float64)
    assert weigh("sparsemax", x).tolist() == pytest.approx([0, 0.25, 0.75])
    assert weigh("entmax15", x).tolist() == pytest.approx([0, 0.3260, 0.6740], abs=5e-5)
    assert weigh("softmax", x).tolist() == pytest.approx([0.0486, 0.3592, 0.5922], abs=5e-5)


@pytest.mark.parametrize(
    ("acceptance", "expected"), [(0.5, [1, 0.317888, 0, 0]), (0.9, [1, 0.534174, 0.115916, 0.003086])]
)
def test_screening(acceptance: float, expected: list[float]) -> None:
    cosines = torch.tensor([1, 0.8, 0.5, 0.2], dtype=torch.float64)
    weights = weigh("screening", cosines, distance=[0, 1, 2, 3], scalars={"window": 4.5, "acceptance": acceptance})
    assert weights.tolist() == pytest.approx(expected, abs=6e-7)
    assert [w == 0 for w in weights.tolist()] == [w == 0 for w in expected]


def test_softmask() -> None:
    fade = screening.fade(torch.arange(5), torch.tensor(4.5, dtype=torch.float64))
    assert fade.tolist() == pytest.approx([1, 0.883022, 0.586824, 0.25, 0.030154], abs=6e-7)


def test_tanh_norm() -> None:
    output = screening.tanh_norm(torch.tensor([0.3, 0.4], dtype=torch.float64))
    assert output.tolist() == pytest.approx([0.277270, 0.369694], abs=6e-7)


def test_mipe_angle() -> None:
    rate = screening.mipe_rate(torch.tensor([10.0, 256.0, 300.0, math.inf], dtype=torch.float64))
    assert (2 * math.pi * rate).tolist() == pytest.approx([0.312978, 0, 0, 0], abs=6e-7)
