"""Every diagnostic agrees with a reference implementation in numpy."""

import math

import numpy as np
import pytest
import torch

from keysift.lens.collector import Collector
from keysift.lens.diagnostics import geometry, rows, sensitivity
from keysift.lens.diagnostics.threshold import threshold
from keysift.lens.head_statistics import bucket_of
from keysift.lens.layer_view import Block
from tests.lens import reference
from tests.lens.cases import every_row, layer_view

CLOSE = {"rel": 1e-4, "abs": 1e-5}


def visible_values(block: Block, head: int, row: int, what: torch.Tensor) -> reference.Row:
    visible = block.visible_HTS[head, row]
    return what[head, row][visible].double().numpy()


@pytest.mark.parametrize("mechanism", ["softmax", "relu_exp", "softmax_minus_uniform"])
def test_dispersion_and_focus_of_each_row(mechanism: str) -> None:
    checked = 0
    for block, head, row in every_row(layer_view(mechanism)):
        a, x = visible_values(block, head, row, block.weights_HTS), visible_values(block, head, row, block.scores_HTS)
        if len(a) < 2 or not np.abs(a).sum():
            continue
        numbers = rows.dispersion(block) | rows.mass_by_position(block) | rows.focus(block) | rows.retained(block)
        actual = {name: float(value[head, row]) for name, value in numbers.items()}
        expected = reference.dispersion(a) | {
            "first_mass": abs(a[0]) / np.abs(a).sum(),
            "own_mass": abs(a[-1]) / np.abs(a).sum(),
            "previous_mass": abs(a[-2]) / np.abs(a).sum(),
            "row_mass": a.sum(),
            "spread": x.max() - x.min(),
            "required_spread": math.log(len(a) - 1),
            "can_focus": float(x.max() - x.min() >= math.log(len(a) - 1)),
        }
        if np.abs(a[1:]).sum():
            later = reference.dispersion(a[1:]) if len(a) > 2 else {"largest_weight": 1.0}
            expected |= {f"{name}_without_first": value for name, value in later.items()}
        heavy = np.sort(np.abs(a))[::-1]
        expected |= {f"retained_{n}": heavy[:n].sum() / heavy.sum() for n in rows.RETAINED if n < len(a)}
        assert {name: actual[name] for name in expected} == pytest.approx(expected, **CLOSE)
        checked += 1
    assert checked > 100


def test_accepted_keys_and_their_distance_to_the_threshold() -> None:
    case = layer_view("screening")
    limits = threshold(case)
    assert limits is not None
    # The initial acceptance is 1/2, so cosines above 1/2 pass.
    assert limits.tolist() == pytest.approx([0.5] * 3, abs=1e-6)
    refused = 0
    for block, head, row in every_row(case):
        a, x = visible_values(block, head, row, block.weights_HTS), visible_values(block, head, row, block.scores_HTS)
        actual = {
            name: float(value[head, row])
            for name, value in (rows.accepted(block) | rows.threshold_distance(block, limits)).items()
        }
        assert actual == pytest.approx(
            {
                "accepted": (a > 0).sum(),
                "accepted_share": (a > 0).mean(),
                "refuses_all": float(not (a > 0).any()),
                "threshold_distance": x.mean() - 0.5,
                "threshold_margin": x.max() - 0.5,
                "refused_margin": 0.5 - x[x <= 0.5].max() if (x <= 0.5).any() else np.nan,
            },
            nan_ok=True,
            **CLOSE,
        )
        refused += not (a > 0).any()
    assert refused, "at least one query refuses all keys"


@pytest.mark.parametrize(
    ("mechanism", "limit"), [("relu_exp", 0.0), ("relu", 0.0), ("softmax", None), ("sigmoid", None)]
)
def test_threshold_of_each_mechanism(mechanism: str, limit: float | None) -> None:
    actual = threshold(layer_view(mechanism))
    assert (
        actual is None
        if limit is None
        else actual is not None and actual.tolist() == pytest.approx([limit] * 3, abs=1e-6)
    )


def test_geometry_of_each_row() -> None:
    case = layer_view(lengths=(40,))
    for block in case.blocks():
        alpha, visible, x = block.weights_HTS, block.visible_HTS, block.values_HSV
        random, shuffled = torch.rand(alpha.shape), x[:, torch.randperm(x.shape[1])]
        numbers = geometry.geometry(alpha, visible, x, random, shuffled)
        assert {"recall_1", "recall_16", "distance_5", "distance_bound_5", "distance_10"} <= set(numbers)
        for head in range(3):
            for row in (11, 23, 39):
                a, n = visible_values(block, head, row, alpha), row + 1
                v = x[head, :n].double().numpy()
                order = np.argsort(-a, kind="stable").tolist()
                random_order = np.argsort(-random[head, row, :n].numpy()).tolist()
                for name, value in numbers.items():
                    what, count = name.rsplit("_", 1)
                    actual, size = float(value[head, row]), int(count)
                    if n <= 2 * size:
                        assert math.isnan(actual), name
                        continue
                    expected = reference.geometry(a, v, order[:size])
                    expected["distance_tightness"] = expected["distance"] / expected["distance_bound"]
                    random_sets = reference.geometry(a, v, random_order[:size])
                    expected |= {
                        "recall_of_random_sets": random_sets["recall"],
                        "distance_random": random_sets["distance"],
                    }
                    with_shuffled_values = reference.geometry(a, shuffled[head, :n].double().numpy(), order[:size])
                    expected["recall_of_shuffled_values"] = with_shuffled_values["recall"]
                    if what not in ("cosine_f",):
                        assert actual == pytest.approx(expected[what], rel=1e-4, abs=1e-5, nan_ok=True), name


def test_which_bounds_hold() -> None:
    """The linear form of Theorem 1 and the lower bound of Theorem 2 hold in every row; the upper bound does not."""
    exceeded = 0
    for mechanism in ("softmax", "relu_exp"):
        for block in layer_view(mechanism, lengths=(60,)).blocks():
            alpha, visible, x = block.weights_HTS, block.visible_HTS, block.values_HSV
            numbers = geometry.geometry(alpha, visible, x, torch.rand(alpha.shape), x)
            for n in geometry.BOUNDED:
                assert (numbers[f"distance_tightness_{n}"].nan_to_num(0) <= 1 + 1e-5).all()
            for n in (2, 4, 8, 16):
                recall, lower, upper = (numbers[f"recall{side}_{n}"] for side in ("", "_lower", "_upper"))
                defined = recall.isfinite() & lower.isfinite()
                assert defined.sum() > 20
                assert (recall[defined] >= lower[defined] - 1e-5).all()
                exceeded += int((recall[defined] > upper[defined] + 1e-5).sum())
    assert exceeded > 0, "the published upper bound is exceeded"


def test_sensitivity_of_each_row() -> None:
    case = layer_view(lengths=(24,))
    scale = 0.25
    for block in case.blocks():
        normal = torch.randn(block.scores_HTS.shape)
        numbers = sensitivity.sensitivity(block.scores_HTS, block.visible_HTS, normal, scale)
        for head in range(3):
            for row in (1, 7, 23):
                x = visible_values(block, head, row, block.scores_HTS)
                u = normal[head, row, : row + 1].double().numpy()
                u = u / np.linalg.norm(u)
                a = reference.softmax(x)
                lam, floor, entropy = (
                    reference.jacobian(a),
                    reference.entropy_floor(x),
                    reference.dispersion(a)["entropy"],
                )
                actual = {name: float(value[head, row]) for name, value in numbers.items()}
                assert actual["jacobian"] == pytest.approx(lam, rel=1e-4)
                assert bool(actual["saturated"]) == (lam < 1e-2)
                assert actual["entropy_floor"] == pytest.approx(floor, rel=1e-6)
                assert actual["entropy_floor_share"] == pytest.approx(floor / entropy, rel=1e-6)
                assert floor <= entropy * (1 + 1e-9)
                tight, published = 0.0, False
                for T in sensitivity.TEMPERATURES:
                    for eps in sensitivity.STEPS:
                        g = (
                            np.linalg.norm(
                                reference.softmax((x / scale + eps * u) / T) - reference.softmax(x / scale / T)
                            )
                            / eps
                        )
                        assert actual[f"gradient_{T:g}_{eps:g}"] == pytest.approx(g, rel=1e-5, abs=1e-9), (T, eps)
                        tight = max(tight, g / min(1 / (2 * T), math.sqrt(2) / eps))
                        published |= g > min(1 / (4 * T), math.sqrt(2))
                assert actual["gradient_tightness"] == pytest.approx(tight, rel=1e-5)
                assert tight <= 1 + 1e-9
                assert bool(actual["gradient_above_published"]) == published


def test_two_tied_keys_exceed_the_published_gradient_bound() -> None:
    tied, u = torch.zeros(1, 1, 2), torch.tensor([[[1.0, -1.0]]])
    actual = sensitivity.sensitivity(tied, torch.ones(1, 1, 2, dtype=torch.bool), u, 1.0)
    assert float(actual["gradient_above_published"]) == 1
    assert float(actual["gradient_tightness"]) == pytest.approx(1, rel=1e-3)


def test_published_jacobian_bound_is_too_small_by_two() -> None:
    tied = torch.tensor([0.5, 0.5, 0.0, 0.0])
    assert float(sensitivity.largest_eigenvalue(tied)) == pytest.approx(0.5)
    assert reference.jacobian(tied.double().numpy()) == pytest.approx(0.5)
    assert 0.5 > 1 / 4


def test_buckets_are_powers_of_two() -> None:
    n = torch.tensor([1, 2, 3, 4, 7, 8, 1023, 1024])
    assert bucket_of(n).tolist() == [0, 1, 1, 2, 2, 3, 9, 10]


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["softmax", "screening", "entmax15", "differential_v1", "selective_temperature"])
def test_block_size_does_not_change_means(mechanism: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of one row and a single block give the same means, with and without padding."""
    case = layer_view(mechanism)
    whole, streamed = Collector(40), Collector(40)
    whole.visit(case)
    blocks = list(case.blocks(cells=1))
    assert max(block.scores_HTS.shape[1] for block in blocks) == 1
    monkeypatch.setattr(type(case), "blocks", lambda self: iter(blocks))
    streamed.visit(case)
    assert set(whole.layers[0].sums) == set(streamed.layers[0].sums)
    for name in whole.layers[0].sums:
        # A temperature of 0.05 amplifies the rounding of the scores twentyfold.
        rtol = 4e-4 if name.startswith("gradient_0.05") else 2e-5
        np.testing.assert_allclose(
            streamed.layers[0].by_length(name), whole.layers[0].by_length(name), rtol=rtol, atol=2e-6, err_msg=name
        )
        assert (streamed.layers[0].counts[name] == whole.layers[0].counts[name]).all()
    for name in whole.layers[0].moments:
        np.testing.assert_allclose(streamed.layers[0].slope(name), whole.layers[0].slope(name), rtol=1e-4, atol=1e-5)


def test_fits_are_least_squares() -> None:
    case = layer_view(lengths=(40,), heads=2)
    collector = Collector(40)
    collector.visit(case)
    for head in range(2):
        points = [
            (math.log(row + 1), math.log(float(block.weights_HTS[head, row].max())))
            for block in case.blocks()
            for row in range(7, 40)
        ]
        slope = np.polyfit(*zip(*points, strict=True), 1)[0]
        assert collector.layers[0].slope("fading")[head] == pytest.approx(slope, rel=1e-4)
