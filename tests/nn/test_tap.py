"""Taps: their names are an interface, they see what passes, and unused they cost nothing."""

import dataclasses
from pathlib import Path

import pytest
import torch

from keysift.kernels.attend import only
from keysift.mechanisms import find
from keysift.models.transformer import TransformerConfig
from keysift.nn.tap import call_taps, edit, taps, trace
from tests.models.checks import TINY, opened, shaken, tokens_for
from tests.refusals import refuses

GOLDEN = Path(__file__).parents[1] / "golden" / "taps.txt"
SMALL = TransformerConfig(vocab_size=9, depth=2, heads=2, width=8)


def test_the_names_are_the_golden_ones() -> None:
    """Renaming a tap is a change of interface. One line for each tap of a two-layer model."""
    models = {"multiscreen": opened(TINY), "transformer": shaken(SMALL)}
    lines = [f"{kind} {name}" for kind, model in models.items() for name in taps(model)]
    assert lines == GOLDEN.read_text().splitlines()


def test_what_passes_is_seen() -> None:
    model = opened(TINY)
    tokens = tokens_for(model, 2, 7)
    with trace(model, "layers.*.relevance", "layers.1.*", "layers.1.tiles.screened") as seen:
        logits = model(tokens)
    assert set(seen) == {
        "layers.0.tiles.relevance",
        "layers.1.tiles.q",
        "layers.1.tiles.k",
        "layers.1.tiles.v",
        "layers.1.tiles.scores",
        "layers.1.tiles.relevance",
        "layers.1.tiles.screened",
        "layers.1.tiles.gate",
        "layers.1.stream",
    }
    assert seen["layers.0.tiles.relevance"].shape == (2, 3, 7, 7)
    assert bool((seen["layers.0.tiles.relevance"].triu(1) == 0).all())
    assert bool((seen["layers.1.tiles.screened"].norm(dim=-1) < 1).all())
    torch.testing.assert_close(model.readout(seen["layers.1.stream"]), logits)
    assert not any(value.requires_grad for value in seen.values())


def test_watching_changes_nothing_and_ends() -> None:
    for model in (opened(TINY), shaken(dataclasses.replace(SMALL, mechanism="differential_v1"))):
        tokens = tokens_for(model, 1, 7)
        before = model(tokens)
        with trace(model, "*") as seen:
            # Weights come from another backend than the output alone, so the last bits may differ.
            torch.testing.assert_close(model(tokens), before, rtol=1e-5, atol=1e-6)
        assert set(seen) == set(taps(model))
        assert not any(tap.watched for tap in taps(model).values())
        seen.clear()
        model(tokens)
        assert not seen


def test_weights_are_not_made_unless_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    from keysift.nn import read

    made: list[str] = []
    run = read.dense.run

    def listening(*args: object, **rest: object) -> object:
        made.append("whole")
        return run(*args, **rest)

    monkeypatch.setattr(read.dense, "run", listening)
    model = opened(TINY)
    with only("blockwise"):
        model(tokens_for(model, 1, 3))
        assert made == []
        with trace(model, "layers.0.*.relevance"):
            model(tokens_for(model, 1, 3))
        assert made == ["whole"]


def test_an_unknown_name_is_refused() -> None:
    model = opened(TINY)
    with (
        refuses("no tap matches 'layers.0.tiles.relevanse'; did you mean 'layers.0.tiles.relevance'"),
        trace(model, "layers.0.tiles.relevanse"),
    ):
        pass


@pytest.mark.parametrize("mechanism", ["softmax", "differential_v1", "relu_exp"])
@pytest.mark.parametrize("what", ["q", "k", "v", "scores", "relevance", "output"])
def test_every_tap_of_a_layer_can_be_edited(what: str, mechanism: str) -> None:
    """An edit that gives back what it got changes nothing; another moves the logits, and no layer before."""
    model = shaken(dataclasses.replace(SMALL, mechanism=mechanism))
    tokens = tokens_for(model, 2, 7)
    before = model(tokens)
    with edit(model, {f"layers.1.{what}": lambda x: x}):
        torch.testing.assert_close(model(tokens), before, rtol=1e-5, atol=1e-6)
    with (
        edit(model, {f"layers.1.{what}": lambda x: x + x.square()}),
        trace(model, "layers.0.stream", f"layers.1.*.{what}") as seen,
    ):
        after = model(tokens)
    assert not torch.allclose(after, before, atol=1e-3)
    with trace(model, "layers.0.stream", f"layers.1.*.{what}") as unedited:
        torch.testing.assert_close(model(tokens), before, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(seen["layers.0.stream"], unedited["layers.0.stream"], rtol=1e-5, atol=1e-6)
    address = f"layers.1.attention.{what}"
    torch.testing.assert_close(seen[address], unedited[address] + unedited[address].square(), rtol=1e-4, atol=1e-5)


def test_a_key_is_dropped_for_one_tile_and_positions_stay() -> None:
    model = opened(TINY)
    tokens = tokens_for(model, 1, 7)

    def drop(w_BHTS: torch.Tensor) -> torch.Tensor:
        w = w_BHTS.clone()
        w[:, 1, :, 2] = 0
        return w

    with trace(model, "layers.0.*") as whole:
        model(tokens)
    with edit(model, {"layers.0.relevance": drop}), trace(model, "layers.0.*") as dropped:
        model(tokens)
    others = [0, 2]
    torch.testing.assert_close(
        dropped["layers.0.tiles.screened"][:, others], whole["layers.0.tiles.screened"][:, others]
    )
    one, other = dropped["layers.0.tiles.screened"][:, 1], whole["layers.0.tiles.screened"][:, 1]
    reads = whole["layers.0.tiles.relevance"][0, 1, :, 2] != 0
    assert reads.any()
    assert (one[0] != other[0]).any(-1).tolist() == reads.tolist(), "only queries that read the key notice"


def test_names_of_other_tools_find_the_same_tap() -> None:
    model = shaken(SMALL)
    with trace(model, "blocks.*.attn.pattern", "blocks.0.attn.hook_q", "layers.1.scores") as seen:
        model(tokens_for(model, 1, 3))
    assert set(seen) == {
        "layers.0.attention.relevance",
        "layers.1.attention.relevance",
        "layers.0.attention.q",
        "layers.1.attention.scores",
    }


def test_an_edit_of_another_shape_is_refused() -> None:
    model = opened(TINY)
    with (
        refuses(
            r"the edit of layers.0.tiles.v must return torch.float32 \(1, 3, 3, 3\) as it got, got torch.float32 \(1"
        ),
        edit(model, {"layers.0.v": lambda v: v[:, :1]}),
    ):
        model(tokens_for(model, 1, 3))


def test_a_call_can_be_edited() -> None:
    """Another mechanism for one layer, with the layer's own scores."""
    model = shaken(SMALL)
    tokens = tokens_for(model, 1, 7)
    swap = call_taps(model)[1].editing(lambda call: dataclasses.replace(call, mechanism=find("sparsemax")))
    with swap, trace(model, "layers.*.relevance") as seen:
        model(tokens)
    assert bool((seen["layers.0.attention.relevance"].tril() > 0).sum() == 2 * 7 * 8 / 2)
    assert bool((seen["layers.1.attention.relevance"].tril() > 0).sum() < 2 * 7 * 8 / 2)
