"""Relevance maps for the playground are the model's own weights, and what thins out is read off a record correctly."""

import json

import pytest

from keysift.cli.inspect import run as inspect_command
from keysift.cli.main import parse
from keysift.lens.examine import inspect
from keysift.lens.maps import relevance_maps
from keysift.lens.ours import Ours
from keysift.lens.reading import Reading
from keysift.lens.thinning import telling_heads, thinning
from tests.lens.subjects import LINE, multiscreen, planted, transformer
from tests.refusals import refuses


@pytest.mark.parametrize("subject", [multiscreen(), transformer()], ids=["multiscreen", "transformer"])
def test_maps_are_the_weights_of_the_layers(subject: Ours) -> None:
    maps = relevance_maps(subject, LINE, tokens=12)
    seen: dict[int, list[list[list[float]]]] = {}

    def visit(reading: Reading) -> None:
        (block,) = reading.blocks_of(0)
        seen[reading.layer] = block.weights_HTS.tolist()

    subject.run([subject.encode(LINE)[:12]], visit)
    assert (maps["format"], maps["version"], len(maps["tokens"])) == ("keysift-maps", 1, 12)
    assert [len(layer["heads"]) for layer in maps["layers"]] == list(subject.about.heads)
    for layer, heads in seen.items():
        for head, rows in enumerate(heads):
            found = maps["layers"][layer]["heads"][head]
            assert found["name"] == f"layers.{layer}.heads.{head}"
            for row, expected in zip(found["weights"], rows, strict=True):
                assert row == pytest.approx(expected, rel=1e-4)
                assert [w == 0 for w in row] == [w == 0 for w in expected], "zeros stay exact"


def test_a_threshold_divides_what_is_accepted() -> None:
    for layer in relevance_maps(multiscreen(), LINE, tokens=16)["layers"]:
        for head in layer["heads"]:
            for weights, scores in zip(head["weights"], head["scores"], strict=True):
                assert all(s >= head["threshold"] - 1e-4 for w, s in zip(weights, scores, strict=True) if w > 0)


def test_heads_are_chosen_and_too_much_is_refused() -> None:
    subject = transformer()
    maps = relevance_maps(subject, LINE, heads=[(1, 2)])
    assert [[head["name"] for head in layer["heads"]] for layer in maps["layers"]] == [["layers.1.heads.2"]]
    with refuses("maps of 8 heads on 1100 tokens are .* read fewer with --tokens"):
        relevance_maps(subject, "a" * 1100)


def test_thinning_finds_the_planted_head() -> None:
    subject = transformer()
    with planted(subject):
        record = inspect(subject, [LINE], tests=False)
    found = thinning(record)
    assert found["strongest_head"] == "layers.0.heads.0"
    assert min(found["strongest"]) > 0.99, "the planted head reads the first key at every length"
    assert found["first"] == sorted(found["first"], reverse=True)
    lengths = {len(found[name]) for name in ("keys", "first", "strongest", "rest", "effective")}
    assert lengths == {len(record.lengths) - 1}
    assert found["keys"] == sorted(found["keys"])
    assert telling_heads(record) == [(0, 0), (0, 2), (0, 1)]


def test_a_model_that_refuses_is_measured_too() -> None:
    found = thinning(inspect(multiscreen(), [LINE], tests=False))
    assert all(0 <= share <= 1 for share in found["first"])
    json.dumps(found, allow_nan=False)


def test_inspect_writes_maps(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("keysift.hub.subject.open_subject", lambda where: transformer())
    inspect_command(parse(["inspect", "model", "--text", LINE, "--tokens", "8", "--maps", f"{tmp_path}/maps.json"]))
    with open(f"{tmp_path}/maps.json") as file:
        assert len(json.load(file)["tokens"]) == 8
    assert "layer head kind" in capsys.readouterr().out
