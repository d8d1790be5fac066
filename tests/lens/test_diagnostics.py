"""Every diagnostic against the same definition in numpy, one row at a time."""

import math

import numpy as np
import pytest
import torch

from keysift.lens import geometry, rows, sensitivity
from keysift.lens.collect import Collector, bucket_of
from keysift.lens.reading import Block
from keysift.lens.threshold import threshold
from tests.lens import plain
from tests.lens.cases import every_row, reading

CLOSE = {"rel": 1e-4, "abs": 1e-5}


def seen_row(block: Block, head: int, row: int, what: torch.Tensor) -> plain.Row:
    seen = block.seen_HTS[head, row]
    return what[head, row][seen].double().numpy()


@pytest.mark.parametrize("mechanism", ["softmax", "relu_exp", "softmax_minus_uniform"])
def test_spread_and_focus_of_each_row(mechanism: str) -> None:
    checked = 0
    for block, head, row in every_row(reading(mechanism)):
        a, x = seen_row(block, head, row, block.weights_HTS), seen_row(block, head, row, block.scores_HTS)
        if len(a) < 2 or not np.abs(a).sum():
            continue
        numbers = rows.spread_out(block) | rows.where(block) | rows.focus(block) | rows.retained(block)
        found = {name: float(value[head, row]) for name, value in numbers.items()}
        wanted = plain.spread_out(a) | {
            "first_mass": abs(a[0]) / np.abs(a).sum(),
            "own_mass": abs(a[-1]) / np.abs(a).sum(),
            "previous_mass": abs(a[-2]) / np.abs(a).sum(),
            "row_mass": a.sum(),
            "spread": x.max() - x.min(),
            "required_spread": math.log(len(a) - 1),
            "can_focus": float(x.max() - x.min() >= math.log(len(a) - 1)),
        }
        if np.abs(a[1:]).sum():
            later = plain.spread_out(a[1:]) if len(a) > 2 else {"largest_weight": 1.0}
            wanted |= {f"{name}_without_first": value for name, value in later.items()}
        heavy = np.sort(np.abs(a))[::-1]
        wanted |= {f"retained_{n}": heavy[:n].sum() / heavy.sum() for n in rows.RETAINED if n < len(a)}
        assert {name: found[name] for name in wanted} == pytest.approx(wanted, **CLOSE)
        checked += 1
    assert checked > 100


def test_accepted_keys_and_their_distance_to_the_threshold() -> None:
    case = reading("screening")
    limits = threshold(case)
    assert limits is not None
    # The initial acceptance is 1/2, so cosines above 1/2 pass.
    assert limits.tolist() == pytest.approx([0.5] * 3, abs=1e-6)
    refused = 0
    for block, head, row in every_row(case):
        a, x = seen_row(block, head, row, block.weights_HTS), seen_row(block, head, row, block.scores_HTS)
        found = {name: float(value[head, row]) for name, value in rows.accepted(block, limits).items()}
        assert found == pytest.approx(
            {
                "accepted": (a > 0).sum(),
                "accepted_share": (a > 0).mean(),
                "refuses_all": float(not (a > 0).any()),
                "threshold_distance": x.mean() - 0.5,
                "threshold_margin": x.max() - 0.5,
            },
            **CLOSE,
        )
        refused += not (a > 0).any()
    assert refused, "a case where nothing is accepted is among them"


@pytest.mark.parametrize(
    ("mechanism", "limit"), [("relu_exp", 0.0), ("relu", 0.0), ("softmax", None), ("sigmoid", None)]
)
def test_thresholds_are_found_where_there_is_one(mechanism: str, limit: float | None) -> None:
    found = threshold(reading(mechanism))
    assert (
        found is None if limit is None else found is not None and found.tolist() == pytest.approx([limit] * 3, abs=1e-6)
    )


def test_geometry_of_each_row() -> None:
    case = reading(lengths=(40,))
    for block in case.blocks():
        alpha, seen, x = block.weights_HTS, block.seen_HTS, block.values_HSV
        random, shuffled = torch.rand(alpha.shape), x[:, torch.randperm(x.shape[1])]
        numbers = geometry.geometry(alpha, seen, x, random, shuffled)
        assert {"recall_1", "recall_16", "distance_5", "distance_bound_5", "distance_10"} <= set(numbers)
        for head in range(3):
            for row in (11, 23, 39):
                a, n = seen_row(block, head, row, alpha), row + 1
                v = x[head, :n].double().numpy()
                order = np.argsort(-a, kind="stable").tolist()
                chance = np.argsort(-random[head, row, :n].numpy()).tolist()
                for name, value in numbers.items():
                    what, count = name.rsplit("_", 1)
                    got, size = float(value[head, row]), int(count)
                    if n <= 2 * size:
                        assert math.isnan(got), name
                        continue
                    wanted = plain.geometry(a, v, order[:size])
                    wanted["distance_tightness"] = wanted["distance"] / wanted["distance_bound"]
                    by_chance = plain.geometry(a, v, chance[:size])
                    wanted |= {"recall_of_random_sets": by_chance["recall"], "distance_random": by_chance["distance"]}
                    others = plain.geometry(a, shuffled[head, :n].double().numpy(), order[:size])
                    wanted["recall_of_shuffled_values"] = others["recall"]
                    if what not in ("cosine_f",):
                        assert got == pytest.approx(wanted[what], rel=1e-4, abs=1e-5, nan_ok=True), name


def test_which_bounds_hold() -> None:
    """The linear form of Theorem 1 and the lower side of Theorem 2 in every row; its upper side in not every one."""
    above = 0
    for mechanism in ("softmax", "relu_exp"):
        for block in reading(mechanism, lengths=(60,)).blocks():
            alpha, seen, x = block.weights_HTS, block.seen_HTS, block.values_HSV
            numbers = geometry.geometry(alpha, seen, x, torch.rand(alpha.shape), x)
            for n in geometry.BOUNDED:
                assert (numbers[f"distance_tightness_{n}"].nan_to_num(0) <= 1 + 1e-5).all()
            for n in (2, 4, 8, 16):
                recall, lower, upper = (numbers[f"recall{side}_{n}"] for side in ("", "_lower", "_upper"))
                there = recall.isfinite() & lower.isfinite()
                assert there.sum() > 20
                assert (recall[there] >= lower[there] - 1e-5).all()
                above += int((recall[there] > upper[there] + 1e-5).sum())
    assert above > 0, "the published upper side is exceeded"


def test_sensitivity_of_each_row() -> None:
    case = reading(lengths=(24,))
    scale = 0.25
    for block in case.blocks():
        normal = torch.randn(block.scores_HTS.shape)
        numbers = sensitivity.sensitivity(block.scores_HTS, block.seen_HTS, normal, scale)
        for head in range(3):
            for row in (1, 7, 23):
                x = seen_row(block, head, row, block.scores_HTS)
                u = normal[head, row, : row + 1].double().numpy()
                u = u / np.linalg.norm(u)
                a = plain.softmax(x)
                lam, floor, entropy = plain.jacobian(a), plain.entropy_floor(x), plain.spread_out(a)["entropy"]
                found = {name: float(value[head, row]) for name, value in numbers.items()}
                assert found["jacobian"] == pytest.approx(lam, rel=1e-4)
                assert bool(found["saturated"]) == (lam < 1e-2)
                assert found["entropy_floor"] == pytest.approx(floor, rel=1e-6)
                assert found["entropy_floor_share"] == pytest.approx(floor / entropy, rel=1e-6)
                assert floor <= entropy * (1 + 1e-9)
                tight, published = 0.0, False
                for T in sensitivity.TEMPERATURES:
                    for eps in sensitivity.STEPS:
                        g = (
                            np.linalg.norm(plain.softmax((x / scale + eps * u) / T) - plain.softmax(x / scale / T))
                            / eps
                        )
                        assert found[f"gradient_{T:g}_{eps:g}"] == pytest.approx(g, rel=1e-5, abs=1e-9), (T, eps)
                        tight = max(tight, g / min(1 / (2 * T), math.sqrt(2) / eps))
                        published |= g > min(1 / (4 * T), math.sqrt(2))
                assert found["gradient_tightness"] == pytest.approx(tight, rel=1e-5)
                assert tight <= 1 + 1e-9
                assert bool(found["gradient_above_published"]) == published


def test_two_tied_keys_exceed_the_published_bound_and_reach_ours() -> None:
    tied, u = torch.zeros(1, 1, 2), torch.tensor([[[1.0, -1.0]]])
    found = sensitivity.sensitivity(tied, torch.ones(1, 1, 2, dtype=torch.bool), u, 1.0)
    assert float(found["gradient_above_published"]) == 1
    assert float(found["gradient_tightness"]) == pytest.approx(1, rel=1e-3)


def test_the_published_bound_on_the_jacobian_is_too_small_by_two() -> None:
    tied = torch.tensor([0.5, 0.5, 0.0, 0.0])
    assert float(sensitivity.largest_eigenvalue(tied)) == pytest.approx(0.5)
    assert plain.jacobian(tied.double().numpy()) == pytest.approx(0.5)
    assert 0.5 > 1 / 4


def test_buckets_are_powers_of_two() -> None:
    n = torch.tensor([1, 2, 3, 4, 7, 8, 1023, 1024])
    assert bucket_of(n).tolist() == [0, 1, 1, 2, 2, 3, 9, 10]


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["softmax", "screening", "entmax15", "differential_v1", "selective_temperature"])
def test_streamed_equals_whole(mechanism: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of one row and one block for all give the same means; padding changes nothing."""
    case = reading(mechanism)
    whole, streamed = Collector(40), Collector(40)
    whole.visit(case)
    blocks = list(case.blocks(cells=1))
    assert max(block.scores_HTS.shape[1] for block in blocks) == 1
    monkeypatch.setattr(type(case), "blocks", lambda self: iter(blocks))
    streamed.visit(case)
    assert set(whole.layers[0].sums) == set(streamed.layers[0].sums)
    for name in whole.layers[0].sums:
        # A temperature of 0.05 makes twenty times as much of the scores' rounding.
        rtol = 4e-4 if name.startswith("gradient_0.05") else 2e-5
        np.testing.assert_allclose(
            streamed.layers[0].by_length(name), whole.layers[0].by_length(name), rtol=rtol, atol=2e-6, err_msg=name
        )
        assert (streamed.layers[0].counts[name] == whole.layers[0].counts[name]).all()
    for name in whole.layers[0].moments:
        np.testing.assert_allclose(streamed.layers[0].slope(name), whole.layers[0].slope(name), rtol=1e-4, atol=1e-5)


def test_fits_are_least_squares() -> None:
    case = reading(lengths=(40,), heads=2)
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
