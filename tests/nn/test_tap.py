"""Taps: their names are an interface, they see what passes, and unused they cost nothing."""

import dataclasses
from pathlib import Path

import pytest
import torch

from keysift.kernels.attend import only
from keysift.models.transformer import TransformerConfig
from keysift.nn.tap import taps, trace
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
