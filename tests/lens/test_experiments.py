"""The experiments on relative relevance, on heads with known answers."""

import numpy as np
import pytest
import torch
from torch import Tensor

from keysift.kernels.weigh import weigh
from keysift.lens.diagnostics import absolute_percentile as percentile
from keysift.lens.diagnostics import removal
from keysift.lens.experiments import dilution, leave_out, top_keys
from keysift.lens.experiments import nothing_relevant as nothing
from keysift.lens.experiments.swap import swap_mechanism
from keysift.lens.layer_view import LayerView
from keysift.lens.model import TextSet, losses
from keysift.lens.unrelated_text import unrelated_tokens
from tests.lens.cases import every_row, layer_view
from tests.lens.models import LINE, planted, transformer
from tests.refusals import refuses

IDS = list(LINE.encode())


def loss(model: object, visit: object = lambda view: None) -> float:
    return TextSet(model, [IDS]).loss(visit)  # type: ignore[arg-type]


@pytest.mark.parametrize("mechanism", ["softmax", "screening", "relu_exp", "entmax15", "softmax1"])
def test_effect_of_removing_the_brightest_key(mechanism: str) -> None:
    """Softmax gives the removed mass to the other keys; with a pointwise mechanism they keep their weights."""
    checked = 0
    for block, head, row in every_row(layer_view(mechanism, lengths=(12,))):
        if row == 0:
            continue
        w = block.weights_HTS[head, row, : row + 1].double().numpy()
        x = block.scores_HTS[head, row, : row + 1].double().numpy()
        v = block.values_HSV[head, : row + 1].double().numpy()
        key = 1 + int(np.argmax(np.abs(w[1:])))
        result = {name: float(value[head, row]) for name, value in removal.removal_effect(block).items()}
        remaining = np.delete(w, key)
        if mechanism == "softmax":
            e = np.exp(np.delete(x, key) - x.max())
            after = e / e.sum()
            assert result["left_out_moved"] == pytest.approx(w[key], abs=1e-5)
        elif mechanism in ("screening", "relu_exp"):
            after = remaining
            assert result["left_out_moved"] == 0
        else:
            after = weigh(mechanism, torch.from_numpy(np.delete(x, key))).numpy()
        shift = np.abs(after - remaining).sum()
        assert result["left_out_moved"] == pytest.approx(shift, abs=1e-5)
        before_out, after_out = w @ v, after @ np.delete(v, key, axis=0)
        if np.linalg.norm(before_out) > 0:
            expected = np.linalg.norm(after_out - before_out) / np.linalg.norm(before_out)
            assert result["left_out_output"] == pytest.approx(expected, rel=1e-3, abs=1e-5)
        checked += 1
    assert checked > 20


def test_loss_without_a_key_equals_the_loss_with_its_score_masked() -> None:
    """Compared with an edit that sets the scores of the key to -1e30, to which softmax gives weight zero."""
    from keysift.nn.tap import edit

    model = transformer()

    def hide(x_BHTS: Tensor) -> Tensor:
        x = x_BHTS.clone()
        x[:, :, 6:, 5] = -1e30
        return x

    with edit(model.model, {"layers.*.scores": hide}), torch.no_grad():
        expected = losses(model, [model.model(torch.tensor([IDS]))[0]], [IDS])[0]

    def visit(view: LayerView) -> Tensor:
        return view.output(
            lambda block: torch.where(
                (block.at_T > 5)[None, :, None],
                removal.weights_without(block, torch.full_like(block.n_HT, 5)),
                block.weights_HTS,
            )
        )

    assert loss(model, visit) == pytest.approx(expected, rel=1e-5)
    result = leave_out.leave_out(TextSet(model, [IDS]))
    assert result["loss"] == pytest.approx(loss(model))
    assert result["brightest"] != pytest.approx(result["loss"])
    assert len(result["layers"]) == 2


def test_percentiles_are_those_of_the_unrelated_scores() -> None:
    model = transformer()
    scores: dict[int, list[list[float]]] = {}

    def collect(view: LayerView) -> None:
        for block in view.blocks():
            scores[block.layer] = [
                [float(block.scores_HTS[h, t, s]) for t in range(1, 40) for s in range(1, t + 1)] for h in range(4)
            ]

    result = percentile.calibrate(model, 40)
    model.run([unrelated_tokens(model, 40)], collect)
    for layer, heads in scores.items():
        for head, values in enumerate(heads):
            table = result.scores[layer][head].tolist()
            assert table == pytest.approx(np.quantile(values, percentile.LEVELS), rel=1e-5, abs=1e-6)
            for x in (min(values) - 1, max(values) + 1, float(np.median(values)), values[3]):
                actual = float(
                    result.percentile(result.scores[layer], torch.full((4, 1), x, dtype=torch.float64))[head, 0]
                )
                assert actual == pytest.approx(np.interp(x, table, percentile.LEVELS), abs=1e-6)


def test_keys_that_are_only_relatively_bright_are_listed() -> None:
    """Shorter queries lower the scores of head 3 in layer 0, so all its bright keys are only relatively bright."""
    from keysift.nn.tap import edit

    model = transformer()
    calibration = percentile.calibrate(model, len(IDS))
    shares = {}

    def shorten_queries(x_BHTK: Tensor) -> Tensor:
        q = x_BHTK.clone()
        q[:, 3] *= 0.3
        return q

    for name, change in (("unchanged", lambda q: q), ("shorter", shorten_queries)):
        examples = percentile.Examples()

        def collect(view: LayerView, examples: percentile.Examples = examples, name: str = name) -> None:
            for block in view.blocks():
                numbers, key = percentile.brightness(block, calibration)
                examples.add(block, 0, numbers, key)
                if block.layer == 0:
                    shares[name] = numbers["only_relatively_bright"][3].nanmean().item()

        with edit(model.model, {"layers.0.q": change}):
            model.run([IDS], collect)
    lowest = examples.lowest(5)
    assert len(lowest) == 5
    assert all(
        example["weight"] >= percentile.BRIGHT and example["among_best"] < percentile.ORDINARY for example in lowest
    )
    assert [example["among_best"] for example in lowest] == sorted(example["among_best"] for example in lowest)
    assert shares["unchanged"] < 0.5
    assert shares["shorter"] == 1


def test_dilution_of_planted_heads() -> None:
    """The largest weight of a uniform head falls like 1/n; that of a previous-token head does not fall."""
    model = transformer(("softmax", "relu_exp"))
    with planted(model):
        result = dilution.dilution(TextSet(model, [IDS]), 120)
    assert result["added"] == [0, 30, 60]
    exponents = {(row["layer"], row["head"]): row["exponent"] for row in result["heads"]}
    assert exponents[0, 1] == pytest.approx(1, abs=1e-4)
    assert exponents[0, 2] == pytest.approx(0, abs=1e-3)
    assert len(exponents) == 8


def test_nothing_relevant() -> None:
    model = transformer()
    with planted(model):
        result = nothing.nothing_relevant(TextSet(model, [IDS]), 64)
    rows = {(row["layer"], row["head"]): row for row in result["heads"]}
    assert (result["span"], result["tokens"]) == (15, 61)
    for way in ("with", "without"):
        assert rows[0, 0][way]["first"] == pytest.approx(1)
        assert rows[0, 2][way]["near"] == pytest.approx(1, abs=0.02)
        uniform = rows[0, 1][way]
        # 15 queries at 46 .. 60, of n = 47 .. 61 keys each
        assert uniform["near"] == pytest.approx(np.mean([8 / n for n in range(47, 62)]))
        assert uniform["span"] == pytest.approx(np.mean([15 / n for n in range(47, 62)]))
        assert sum(uniform[place] for place in nothing.PLACES) == pytest.approx(1)
        assert uniform["mass"] == pytest.approx(1)
    assert rows[1, 0]["with"] != rows[1, 0]["without"], "a head that was not edited changes"
    for row in nothing.nothing_relevant(TextSet(transformer("relu_exp"), [IDS]), 64)["heads"]:
        assert sum(row["with"][place] for place in nothing.PLACES) <= 1 + 1e-9, (
            "fractions of the mass, also where rows do not sum to one"
        )
        assert row["with"]["mass"] != pytest.approx(1)


def test_search_of_the_fewest_keys() -> None:
    counts: list[int] = []

    def curve(count: int) -> float:
        counts.append(count)
        return {1: 2.0, 2: 1.3, 3: 1.08, 4: 1.06, 5: 1.04, 6: 1.03}.get(count, 1.005)

    best, tried_losses = top_keys.smallest(curve, 1.0, 100)
    assert best == {"0.01": 7, "0.05": 5, "0.1": 3}
    assert len(counts) == len(set(counts)), "every count runs once"
    assert tried_losses[100] == 1.0
    best, _ = top_keys.smallest(lambda count: 9.0, 1.0, 5)
    assert best == {"0.01": 5, "0.05": 5, "0.1": 5}
    best, _ = top_keys.smallest(lambda count: float(count < 4), 0.0, 10)
    assert best == {"0.01": 4, "0.05": 4, "0.1": 4}, "a model that answers every question has no loss"


def test_keep_top_deletes_and_renormalises() -> None:
    for block, head, row in every_row(layer_view(lengths=(9,))):
        w = block.weights_HTS[head, row].double().numpy()
        for count in (1, 3):
            expected = np.where(w >= np.sort(w)[-count], w, 0)
            actual = top_keys.keep_top(block, count, False)[head, row].double().numpy()
            assert actual == pytest.approx(expected, abs=1e-7)
            again = top_keys.keep_top(block, count, True)[head, row].double().numpy()
            assert again == pytest.approx(expected / expected.sum() * w.sum(), abs=1e-6)
        assert torch.equal(top_keys.keep_top(block, 9, False), block.weights_HTS)


def test_top_keys_of_a_model_and_of_its_heads() -> None:
    model = transformer()
    sample = TextSet(model, [IDS])
    result = top_keys.top_keys(sample, each_head=True)
    assert result["loss"] == pytest.approx(loss(model))
    tried = result["deletion"]["tried"]  # type: ignore[index]
    assert tried["1"] == pytest.approx(top_keys.loss_with_top(sample, 1, renormalise=False))
    assert tried["1"] != pytest.approx(tried[str(len(IDS))])
    assert len(result["heads"]) == 8  # type: ignore[arg-type]
    head_2 = top_keys.loss_with_top(sample, 1, renormalise=False, head=(1, 2))
    head_3 = top_keys.loss_with_top(sample, 1, renormalise=False, head=(1, 3))
    assert len({head_2, head_3, tried["1"], result["loss"]}) == 4  # type: ignore[arg-type]


def test_batch_size_does_not_change_results() -> None:
    """Means over texts of different lengths agree for single texts and for a padded batch."""
    model = transformer()
    texts = [IDS, IDS[7:40], IDS[3:33]]
    alone, batched_texts = TextSet(model, texts), TextSet(model, texts, batch=3)
    for sample in (alone, batched_texts):
        assert sample.loss() == pytest.approx(np.mean([TextSet(model, [ids]).loss() for ids in texts]), rel=1e-5)
    single, batched = leave_out.leave_out(alone), leave_out.leave_out(batched_texts)
    each = [leave_out.leave_out(TextSet(model, [ids])) for ids in texts]
    for name in ("loss", "brightest", "first"):
        assert single[name] == pytest.approx(np.mean([result[name] for result in each]), rel=1e-5)
    for x, y in zip(single["layers"], batched["layers"], strict=True):
        assert x == pytest.approx(y, rel=1e-4)
        assert 0 < x["brightest_output"] < 2
    results = [
        test(sample, 64) for test in (dilution.dilution, nothing.nothing_relevant) for sample in (alone, batched_texts)
    ]
    for x, y in ((results[0], results[1]), (results[2], results[3])):
        assert x["span"] == y["span"] == 15 + (x is results[0])
        for single_head, batched_head in zip(x["heads"], y["heads"], strict=True):
            for name, value in single_head.items():
                assert value == pytest.approx(batched_head[name], rel=1e-4, abs=1e-6), name
    actual = [top_keys.loss_with_top(sample, 2, renormalise=True) for sample in (alone, batched_texts)]
    assert actual[0] == pytest.approx(actual[1], rel=1e-5)


def test_output_change_of_a_layer() -> None:
    """Compared with the traced output of the layer with and without an edit."""
    from keysift.nn.tap import edit, trace

    model = transformer()

    def hide(w_BHTS: Tensor) -> Tensor:
        w = w_BHTS.clone()
        w[:, :, 1:, 0] = 0
        return w / w.sum(-1, keepdim=True)

    with trace(model.model, "layers.0.output") as before, torch.no_grad():
        model.model(torch.tensor([IDS]))
        own = before["layers.0.attention.output"].clone()
        with edit(model.model, {"layers.0.relevance": hide}):
            model.model(torch.tensor([IDS]))
        moved = before["layers.0.attention.output"]
    expected = float((moved - own).norm() / own.norm())
    assert leave_out.output_changes(TextSet(model, [IDS]), removal.first_key)[0] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", ["sparsemax", "ssmax", "relu_exp", "softmax_sink", "softmax"])
def test_swap_mechanism_uses_the_same_scores(name: str) -> None:
    case = layer_view(lengths=(12,))
    for block, head, row in every_row(swap_mechanism(case, name)):
        x = block.scores_HTS[head, row, : row + 1]
        if name != "ssmax":  # its factor follows the context
            torch.testing.assert_close(block.weights_HTS[head, row, : row + 1], weigh(name, x), rtol=1e-5, atol=1e-6)
    model = transformer()
    same = loss(model, lambda view: swap_mechanism(view, "softmax").output(lambda block: block.weights_HTS))
    assert same == pytest.approx(loss(model), rel=1e-5)
    if name != "softmax":
        assert loss(
            model, lambda view: swap_mechanism(view, name).output(lambda block: block.weights_HTS)
        ) != pytest.approx(same, rel=1e-4)


def test_a_swap_to_a_mechanism_without_the_own_key() -> None:
    for block, head, row in every_row(swap_mechanism(layer_view(lengths=(12,)), "stick_breaking")):
        x = block.scores_HTS[head, row, :row]
        expected = torch.cat((weigh("stick_breaking", x), torch.zeros(1))) if row else torch.zeros(1)
        torch.testing.assert_close(block.weights_HTS[head, row, : row + 1], expected, rtol=1e-5, atol=1e-6)


def test_unsupported_swaps_raise() -> None:
    case = layer_view()
    with refuses("differential_v1 cannot weigh this model's scores: it compares 2 maps of scores and this model has 1"):
        swap_mechanism(case, "differential_v1")
    for name, reason in (
        ("screening", "it reads cosines"),
        ("selective_temperature", "it computes a number from each token"),
        ("softmax+output_gate", "it computes a number from each token"),
    ):
        with refuses(f"cannot weigh this model's scores: {reason}"):
            swap_mechanism(case, name)
