"""Relevance maps for the playground equal the weights of the model; dispersion curves agree with the record."""

import json

import pytest

from keysift.cli.main import parse
from keysift.cli.verbs.inspect import run as inspect_command
from keysift.core.config import from_dict
from keysift.lens.diagnostics.dispersion import dispersion_curves, representative_heads
from keysift.lens.diagnostics.relevance_maps import relevance_maps
from keysift.lens.inspection import inspect
from keysift.lens.keysift_model import KeysiftModel
from keysift.lens.layer_view import LayerView
from keysift.records.evaluation import RelevanceMaps
from tests.lens.models import LINE, multiscreen, planted, transformer
from tests.refusals import refuses


@pytest.mark.parametrize("model", [multiscreen(), transformer()], ids=["multiscreen", "transformer"])
def test_maps_are_the_weights_of_the_layers(model: KeysiftModel) -> None:
    maps = relevance_maps(model, LINE, tokens=12)
    weights: dict[int, list[list[list[float]]]] = {}

    def visit(view: LayerView) -> None:
        (block,) = view.text_blocks(0)
        weights[view.layer] = block.weights_HTS.tolist()

    model.run([model.encode(LINE)[:12]], visit)
    assert (maps.format, maps.version, len(maps.tokens)) == ("keysift-maps", 1, 12)
    assert [len(layer.heads) for layer in maps.layers] == list(model.info.heads)
    for layer, heads in weights.items():
        for head, rows in enumerate(heads):
            head_map = maps.layers[layer].heads[head]
            assert head_map.name == f"layers.{layer}.heads.{head}"
            for row, expected in zip(head_map.weights, rows, strict=True):
                assert row == pytest.approx(expected, rel=1e-4)
                assert [w == 0 for w in row] == [w == 0 for w in expected], "zeros stay exact"


def test_threshold_separates_accepted_keys() -> None:
    for layer in relevance_maps(multiscreen(), LINE, tokens=16).layers:
        for head in layer.heads:
            assert head.threshold is not None
            for weights, scores in zip(head.weights, head.scores, strict=True):
                assert all(s >= head.threshold - 1e-4 for w, s in zip(weights, scores, strict=True) if w > 0)


def test_selected_heads_and_size_limit() -> None:
    model = transformer()
    maps = relevance_maps(model, LINE, heads=[(1, 2)])
    assert [[head.name for head in layer.heads] for layer in maps.layers] == [["layers.1.heads.2"]]
    with refuses("maps of 8 heads on 1100 tokens are .* read fewer with --tokens"):
        relevance_maps(model, "a" * 1100)


def test_dispersion_curves_name_the_planted_head() -> None:
    model = transformer()
    with planted(model):
        record = inspect(model, [LINE], tests=False)
    curves = dispersion_curves(record)
    assert curves["strongest_head"] == "layers.0.heads.0"
    assert min(curves["strongest"]) > 0.99, "the planted head attends to the first key at every length"
    assert curves["first"] == sorted(curves["first"], reverse=True)
    lengths = {len(curves[name]) for name in ("keys", "first", "strongest", "rest", "effective")}
    assert lengths == {len(record.lengths) - 1}
    assert curves["keys"] == sorted(curves["keys"])
    assert representative_heads(record) == [(0, 0), (0, 2), (0, 1)]


def test_dispersion_curves_of_a_multiscreen() -> None:
    curves = dispersion_curves(inspect(multiscreen(), [LINE], tests=False))
    assert all(0 <= share <= 1 for share in curves["first"])
    json.dumps(curves, allow_nan=False)


def test_inspect_writes_maps(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("keysift.hub.lens_model.open_model", lambda where: transformer())
    out = ["--details", "--maps", f"{tmp_path}/maps.json"]
    inspect_command(parse(["inspect", "model", "--text", LINE, "--tokens", "8", *out]))
    with open(f"{tmp_path}/maps.json") as file:
        maps = from_dict(RelevanceMaps, json.load(file))
    assert (len(maps.tokens), maps.text) == (8, "text 1")
    assert "layer head kind" in capsys.readouterr().out
