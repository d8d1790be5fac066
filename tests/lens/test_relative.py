"""The tests of relative relevance, on heads whose answers are known."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from keysift.lens import dilution, functional, leave_out, nothing, percentile
from keysift.lens.examine import inspect
from keysift.lens.filler import filler
from keysift.lens.reading import Reading
from keysift.lens.subject import Sample, losses
from keysift.lens.swap import output, swapped
from tests.lens.cases import every_row, reading
from tests.lens.subjects import LINE, multiscreen, planted, transformer
from tests.refusals import refuses

IDS = list(LINE.encode())


def loss(subject: object, visit: object = lambda reading: None) -> float:
    return Sample(subject, [IDS]).loss(visit)  # type: ignore[arg-type]


@pytest.mark.parametrize("mechanism", ["softmax", "screening", "relu_exp", "entmax15", "softmax1"])
def test_what_moves_when_the_brightest_key_leaves(mechanism: str) -> None:
    """Softmax gives the others what left; a mechanism that judges each key alone moves nothing at all."""
    checked = 0
    for block, head, row in every_row(reading(mechanism, lengths=(12,))):
        if row == 0:
            continue
        w = block.weights_HTS[head, row, : row + 1].double().numpy()
        x = block.scores_HTS[head, row, : row + 1].double().numpy()
        v = block.values_HSV[head, : row + 1].double().numpy()
        key = 1 + int(np.argmax(np.abs(w[1:])))
        found = {name: float(value[head, row]) for name, value in leave_out.moved(block).items()}
        rest = np.delete(w, key)
        if mechanism == "softmax":
            e = np.exp(np.delete(x, key) - x.max())
            after = e / e.sum()
            assert found["left_out_moved"] == pytest.approx(w[key], abs=1e-5)
        elif mechanism in ("screening", "relu_exp"):
            after = rest
            assert found["left_out_moved"] == 0
        else:
            continue
        shift = np.abs(after - rest).sum()
        assert found["left_out_moved"] == pytest.approx(shift, abs=1e-5)
        before_out, after_out = w @ v, after @ np.delete(v, key, axis=0)
        if np.linalg.norm(before_out) > 0:
            wanted = np.linalg.norm(after_out - before_out) / np.linalg.norm(before_out)
            assert found["left_out_output"] == pytest.approx(wanted, rel=1e-3, abs=1e-5)
        checked += 1
    assert checked or mechanism in ("entmax15", "softmax1")


def test_losing_a_key_everywhere_is_the_loss_without_it() -> None:
    """Against an edit of the scores: the key's score is minus a lot, so softmax gives it nothing."""
    from keysift.nn.tap import edit

    subject = transformer()

    def hide(x_BHTS: Tensor) -> Tensor:
        x = x_BHTS.clone()
        x[:, :, 6:, 5] = -1e30
        return x

    with edit(subject.model, {"layers.*.scores": hide}), torch.no_grad():
        wanted = losses(subject, [subject.model(torch.tensor([IDS]))[0]], [IDS])[0]
    chosen = leave_out.position(5)

    def visit(seen: Reading) -> Tensor:
        return seen.output(
            lambda block: torch.where(
                (block.at_T > 5)[None, :, None], leave_out.without(block, chosen(block)), block.weights_HTS
            )
        )

    assert loss(subject, visit) == pytest.approx(wanted, rel=1e-5)
    found = leave_out.leave_out(Sample(subject, [IDS]))
    assert found["loss"] == pytest.approx(loss(subject))
    assert found["brightest"] != pytest.approx(found["loss"])
    assert len(found["layers"]) == 2
    one = leave_out.loss_without(Sample(subject, [IDS]), leave_out.brightest, layer=0, heads=[1])
    assert one not in (pytest.approx(found["layers"][0]["brightest"]), pytest.approx(found["loss"]))


def test_percentiles_are_those_of_the_unrelated_scores() -> None:
    subject = transformer()
    scores: dict[int, list[list[float]]] = {}

    def look(seen: Reading) -> None:
        for block in seen.blocks():
            scores[block.layer] = [
                [float(block.scores_HTS[h, t, s]) for t in range(1, 40) for s in range(1, t + 1)] for h in range(4)
            ]

    found = percentile.calibrate(subject, 40)
    subject.run([filler(subject, 40)], look)
    for layer, heads in scores.items():
        for head, values in enumerate(heads):
            table = found.scores[layer][head].tolist()
            assert table == pytest.approx(np.quantile(values, percentile.LEVELS), rel=1e-5, abs=1e-6)
            for x in (min(values) - 1, max(values) + 1, float(np.median(values)), values[3]):
                got = float(found.percentile(found.scores[layer], torch.full((4, 1), x, dtype=torch.float64))[head, 0])
                assert got == pytest.approx(np.interp(x, table, percentile.LEVELS), abs=1e-6)
    with_text = percentile.calibrate(subject, 40, LINE)
    assert not torch.equal(with_text.scores[0], found.scores[0])


def test_a_key_bright_only_in_its_company_is_named() -> None:
    """Head 3 of layer 0 scores everything far below unrelated text once its queries are turned against its keys."""
    from keysift.nn.tap import edit

    subject = transformer()
    calibration = percentile.calibrate(subject, len(IDS))
    sums = {}

    def darker(x_BHTK: Tensor) -> Tensor:
        q = x_BHTK.clone()
        q[:, 3] *= -3
        return q

    for name, change in (("as it was", lambda q: q), ("darker", darker)):
        examples = percentile.Examples()

        def look(seen: Reading, examples: percentile.Examples = examples, name: str = name) -> None:
            for block in seen.blocks():
                numbers, key = percentile.brightness(block, calibration)
                examples.add(block, 0, numbers, key)
                if block.layer == 0:
                    sums[name] = numbers["only_relatively_bright"][3].nanmean().item()

        with edit(subject.model, {"layers.0.q": change}):
            subject.run([IDS], look)
    named = examples.lowest(5)
    assert all(facts["weight"] >= percentile.BRIGHT and facts["among_best"] < percentile.ORDINARY for facts in named)
    assert [facts["among_best"] for facts in named] == sorted(facts["among_best"] for facts in named)
    assert math.isnan(sums["as it was"]) or sums["darker"] != sums["as it was"]


def test_dilution_of_planted_heads() -> None:
    """A head that averages fades like 1/n, one that reads the token before does not notice; nor does a threshold."""
    subject = transformer(("softmax", "relu_exp"))
    with planted(subject):
        found = dilution.dilution(Sample(subject, [IDS]), 120)
    assert found["added"] == [0, 30, 60]
    exponents = {(row["layer"], row["head"]): row["exponent"] for row in found["heads"]}
    assert exponents[0, 1] == pytest.approx(1, abs=1e-4)
    assert exponents[0, 2] == pytest.approx(0, abs=1e-3)
    assert len(exponents) == 8


def test_where_the_mass_goes_when_nothing_is_relevant() -> None:
    subject = transformer()
    with planted(subject):
        found = nothing.nothing_relevant(Sample(subject, [IDS]), 64)
    rows = {(row["layer"], row["head"]): row for row in found["heads"]}
    assert (found["span"], found["tokens"]) == (15, 61)
    for way in ("with", "without"):
        assert rows[0, 0][way]["first"] == pytest.approx(1)
        assert rows[0, 2][way]["near"] == pytest.approx(1, abs=0.02)
        uniform = rows[0, 1][way]
        # 15 queries at 46 .. 60, of n = 47 .. 61 keys each
        assert uniform["near"] == pytest.approx(np.mean([8 / n for n in range(47, 62)]))
        assert uniform["span"] == pytest.approx(np.mean([15 / n for n in range(47, 62)]))
        assert sum(uniform[place] for place in nothing.PLACES) == pytest.approx(1)
        assert uniform["mass"] == pytest.approx(1)
    assert rows[1, 0]["with"] != rows[1, 0]["without"], "a head that was not planted notices"
    for row in nothing.nothing_relevant(Sample(transformer("relu_exp"), [IDS]), 64)["heads"]:
        assert sum(row["with"][place] for place in nothing.PLACES) <= 1 + 1e-9, "shares, where rows do not sum to one"
        assert row["with"]["mass"] != pytest.approx(1)


def test_the_fewest_keys_that_suffice() -> None:
    tried: list[int] = []

    def curve(count: int) -> float:
        tried.append(count)
        return {1: 2.0, 2: 1.3, 3: 1.08, 4: 1.06, 5: 1.04, 6: 1.03}.get(count, 1.005)

    best, seen = functional.smallest(curve, 1.0, 100)
    assert best == {"0.01": 7, "0.05": 5, "0.1": 3}
    assert len(tried) == len(set(tried)), "no count is run twice"
    assert seen[100] == 1.0
    best, _ = functional.smallest(lambda count: 9.0, 1.0, 5)
    assert best == {"0.01": 5, "0.05": 5, "0.1": 5}


def test_deletion_and_renormalisation_are_what_they_say() -> None:
    for block, head, row in every_row(reading(lengths=(9,))):
        w = block.weights_HTS[head, row].double().numpy()
        for count in (1, 3):
            wanted = np.where(w >= np.sort(w)[-count], w, 0)
            kept = functional.heaviest(block, count, False)[head, row].double().numpy()
            assert kept == pytest.approx(wanted, abs=1e-7)
            again = functional.heaviest(block, count, True)[head, row].double().numpy()
            assert again == pytest.approx(wanted / wanted.sum() * w.sum(), abs=1e-6)
        assert torch.equal(functional.heaviest(block, 9, False), block.weights_HTS)


def test_functional_of_a_model_and_of_its_heads() -> None:
    subject = transformer()
    sample = Sample(subject, [IDS])
    found = functional.functional(sample, heads=True)
    assert found["loss"] == pytest.approx(loss(subject))
    tried = found["deletion"]["tried"]  # type: ignore[index]
    assert tried["1"] == pytest.approx(functional.loss_with_top(sample, 1, renormalise=False))
    assert tried["1"] != pytest.approx(tried[str(len(IDS))])
    assert len(found["heads"]) == 8  # type: ignore[arg-type]
    one = functional.loss_with_top(sample, 1, renormalise=False, head=(1, 2))
    other = functional.loss_with_top(sample, 1, renormalise=False, head=(1, 3))
    assert len({one, other, tried["1"], found["loss"]}) == 4  # type: ignore[arg-type]


def test_every_text_takes_part_whatever_the_batch() -> None:
    """Means over texts of different lengths: read one by one, or together with padding."""
    subject = transformer()
    texts = [IDS, IDS[7:40], IDS[3:33]]
    alone, together = Sample(subject, texts), Sample(subject, texts, batch=3)
    for sample in (alone, together):
        assert sample.loss() == pytest.approx(np.mean([Sample(subject, [ids]).loss() for ids in texts]), rel=1e-5)
    one, three = leave_out.leave_out(alone), leave_out.leave_out(together)
    each = [leave_out.leave_out(Sample(subject, [ids])) for ids in texts]
    for name in ("loss", "brightest", "first"):
        assert one[name] == pytest.approx(np.mean([found[name] for found in each]), rel=1e-5)
    for x, y in zip(one["layers"], three["layers"], strict=True):
        assert x == pytest.approx(y, rel=1e-4)
        assert 0 < x["brightest_output"] < 2
    both = [test(sample, 64) for test in (dilution.dilution, nothing.nothing_relevant) for sample in (alone, together)]
    for x, y in ((both[0], both[1]), (both[2], both[3])):
        assert x["span"] == y["span"] == 15 + (x is both[0])
        for mine, theirs in zip(x["heads"], y["heads"], strict=True):
            for name, value in mine.items():
                assert value == pytest.approx(theirs[name], rel=1e-4, abs=1e-6), name
    kept = [functional.loss_with_top(sample, 2, renormalise=True) for sample in (alone, together)]
    assert kept[0] == pytest.approx(kept[1], rel=1e-5)


def test_how_far_a_layer_moves() -> None:
    """Against the edited and the untouched output of each layer, as a trace sees them."""
    from keysift.nn.tap import edit, trace

    subject = transformer()

    def hide(w_BHTS: Tensor) -> Tensor:
        w = w_BHTS.clone()
        w[:, :, 1:, 0] = 0
        return w / w.sum(-1, keepdim=True)

    with trace(subject.model, "layers.0.output") as before, torch.no_grad():
        subject.model(torch.tensor([IDS]))
        own = before["layers.0.attention.output"].clone()
        with edit(subject.model, {"layers.0.relevance": hide}):
            subject.model(torch.tensor([IDS]))
        moved = before["layers.0.attention.output"]
    wanted = float((moved - own).norm() / own.norm())
    assert leave_out.outputs_moved(Sample(subject, [IDS]), leave_out.first)[0] == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("name", ["sparsemax", "ssmax", "relu_exp", "softmax_sink", "softmax"])
def test_a_swap_weighs_the_same_scores(name: str) -> None:
    from keysift.kernels.weigh import weigh

    case = reading(lengths=(12,))
    for block, head, row in every_row(swapped(case, name)):
        x = block.scores_HTS[head, row, : row + 1]
        if name != "ssmax":  # its factor follows the context
            torch.testing.assert_close(block.weights_HTS[head, row, : row + 1], weigh(name, x), rtol=1e-5, atol=1e-6)
    subject = transformer()
    same = loss(subject, lambda seen: output(swapped(seen, "softmax")))
    assert same == pytest.approx(loss(subject), rel=1e-5)
    if name != "softmax":
        assert loss(subject, lambda seen: output(swapped(seen, name))) != pytest.approx(same, rel=1e-4)


def test_what_cannot_be_swapped_is_refused() -> None:
    case = reading()
    with refuses("differential_v1 cannot weigh this model's scores: it compares 2 maps of scores and this model has 1"):
        swapped(case, "differential_v1")
    for name, reason in (
        ("screening", "it reads cosines"),
        ("selective_temperature", "it computes a number from each token"),
        ("softmax+output_gate", "it computes a number from each token"),
    ):
        with refuses(f"cannot weigh this model's scores: {reason}"):
            swapped(case, name)


def test_a_record_tells_what_was_found() -> None:
    subject = transformer(("softmax", "relu_exp"))
    with planted(subject):
        record = inspect(subject, [LINE], swap=["sparsemax"], each_head=True)
    said = "\n".join(record.findings)
    assert "sink (more than half of its mass lies on the first key" in said
    assert "4 threshold" in said
    assert "4 heads can refuse keys exactly" in said
    assert "only relatively bright" in said
    assert f"the loss goes from {record.texts[0].loss:.3f} to" in said
    assert "With sparsemax on the same scores, without retraining, the loss is" in said
    assert len(record.swaps[0]["heads"]) == 8
    assert set(record.tests) == {"absolute_percentile", "leave_out", "dilution", "nothing_relevant", "functional"}
    plain = inspect(multiscreen(), [LINE], tests=False)
    assert not plain.tests
    assert "can refuse" in plain.findings[-1]
