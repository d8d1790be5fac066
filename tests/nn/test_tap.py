"""Taps: golden names, traced values, edits, and no cost when unused."""

import dataclasses
from pathlib import Path

import pytest
import torch

from keysift.core.errors import KeysiftError
from keysift.kernels.attend import force_backend
from keysift.mechanisms import find
from keysift.models.transformer import Transformer, TransformerConfig
from keysift.nn.tap import call_taps, edit, taps, trace
from tests.models.checks import TINY, perturbed_multiscreen, perturbed_transformer, tokens_for
from tests.refusals import refuses

GOLDEN = Path(__file__).parents[1] / "golden" / "taps.txt"
SMALL = TransformerConfig(vocab_size=9, depth=2, heads=2, width=8)


def test_names_match_the_golden_file() -> None:
    """Tap names are public API. The file has one line per tap of a two-layer model."""
    models = {"multiscreen": perturbed_multiscreen(TINY), "transformer": perturbed_transformer(SMALL)}
    lines = [f"{kind} {name}" for kind, model in models.items() for name in taps(model)]
    assert lines == GOLDEN.read_text().splitlines()


def test_trace_records_values() -> None:
    model = perturbed_multiscreen(TINY)
    tokens = tokens_for(model, 2, 7)
    with trace(model, "layers.*.relevance", "layers.1.*", "layers.1.tiles.screened") as traced:
        logits = model(tokens)
    assert set(traced) == {
        "layers.0.tiles.relevance",
        "layers.1.tiles.q",
        "layers.1.tiles.k",
        "layers.1.tiles.v",
        "layers.1.tiles.scores",
        "layers.1.tiles.relevance",
        "layers.1.tiles.screened",
        "layers.1.tiles.gate",
        "layers.1.stream_in",
        "layers.1.tiles_out",
        "layers.1.stream",
    }
    assert traced["layers.0.tiles.relevance"].shape == (2, 3, 7, 7)
    assert bool((traced["layers.0.tiles.relevance"].triu(1) == 0).all())
    assert bool((traced["layers.1.tiles.screened"].norm(dim=-1) < 1).all())
    torch.testing.assert_close(model.readout(traced["layers.1.stream"]), logits)
    assert not any(value.requires_grad for value in traced.values())


def test_tracing_changes_no_output_and_removes_its_hooks() -> None:
    for model in (
        perturbed_multiscreen(TINY),
        perturbed_transformer(dataclasses.replace(SMALL, mechanism="differential_v1")),
    ):
        tokens = tokens_for(model, 1, 7)
        before = model(tokens)
        with trace(model, "*") as traced:
            # Traced weights come from another backend, so the last bits may differ.
            torch.testing.assert_close(model(tokens), before, rtol=1e-5, atol=1e-6)
        assert set(traced) == set(taps(model))
        assert not any(tap.has_listeners for tap in taps(model).values())
        traced.clear()
        model(tokens)
        assert not traced


def test_weights_are_computed_only_for_listeners(monkeypatch: pytest.MonkeyPatch) -> None:
    from keysift.nn import cached_attention

    calls: list[str] = []
    attend_dense = cached_attention.attend_dense

    def counted(*args: object, **options: object) -> object:
        calls.append("dense")
        return attend_dense(*args, **options)

    monkeypatch.setattr(cached_attention, "attend_dense", counted)
    model = perturbed_multiscreen(TINY)
    with force_backend("blockwise"):
        model(tokens_for(model, 1, 3))
        assert calls == []
        with trace(model, "layers.0.*.relevance"):
            model(tokens_for(model, 1, 3))
        assert calls == ["dense"]


def test_an_unknown_name_is_refused() -> None:
    model = perturbed_multiscreen(TINY)
    with (
        refuses("no tap matches 'layers.0.tiles.relevanse'; did you mean 'layers.0.tiles.relevance'"),
        trace(model, "layers.0.tiles.relevanse"),
    ):
        pass


@pytest.mark.parametrize("mechanism", ["softmax", "differential_v1", "relu_exp"])
@pytest.mark.parametrize("what", ["q", "k", "v", "scores", "relevance", "output"])
def test_every_tap_of_a_layer_can_be_edited(what: str, mechanism: str) -> None:
    """An identity edit changes nothing. Another edit changes the logits, but no earlier layer."""
    model = perturbed_transformer(dataclasses.replace(SMALL, mechanism=mechanism))
    tokens = tokens_for(model, 2, 7)
    before = model(tokens)
    with edit(model, {f"layers.1.{what}": lambda x: x}):
        torch.testing.assert_close(model(tokens), before, rtol=1e-5, atol=1e-6)
    with (
        edit(model, {f"layers.1.{what}": lambda x: x + x.square()}),
        trace(model, "layers.0.stream", f"layers.1.*.{what}") as traced,
    ):
        after = model(tokens)
    assert not torch.allclose(after, before, atol=1e-3)
    with trace(model, "layers.0.stream", f"layers.1.*.{what}") as unedited:
        torch.testing.assert_close(model(tokens), before, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(traced["layers.0.stream"], unedited["layers.0.stream"], rtol=1e-5, atol=1e-6)
    address = f"layers.1.attention.{what}"
    torch.testing.assert_close(traced[address], unedited[address] + unedited[address].square(), rtol=1e-4, atol=1e-5)


def test_dropping_a_key_of_one_tile_changes_that_tile_only() -> None:
    model = perturbed_multiscreen(TINY)
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
    edited, unedited = dropped["layers.0.tiles.screened"][:, 1], whole["layers.0.tiles.screened"][:, 1]
    accepts = whole["layers.0.tiles.relevance"][0, 1, :, 2] != 0
    assert accepts.any()
    assert (edited[0] != unedited[0]).any(-1).tolist() == accepts.tolist(), (
        "only outputs of queries that accepted the key change"
    )


def test_transformer_lens_names_find_the_same_tap() -> None:
    model = perturbed_transformer(SMALL)
    with trace(model, "blocks.*.attn.pattern", "blocks.0.attn.hook_q", "layers.1.scores") as traced:
        model(tokens_for(model, 1, 3))
    assert set(traced) == {
        "layers.0.attention.relevance",
        "layers.1.attention.relevance",
        "layers.0.attention.q",
        "layers.1.attention.scores",
    }


def test_the_residual_stream_has_transformer_lens_names() -> None:
    """The parts of the stream add up, and editing one changes the logits."""
    parts = ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")
    for model in (perturbed_transformer(SMALL), perturbed_multiscreen(TINY)):
        tokens = tokens_for(model, 2, 7)
        logits = model(tokens)
        with trace(model, "blocks.*.hook_*", "hook_embed", "unembed.hook_out") as seen:
            torch.testing.assert_close(model(tokens), logits, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(seen["logits"], logits)
        assert torch.equal(seen["embed"], seen["layers.0.stream_in"])
        assert torch.equal(seen["layers.0.stream"], seen["layers.1.stream_in"])
        written = [value for name, value in seen.items() if name.endswith("_out")]
        torch.testing.assert_close(seen["layers.1.stream"], sum(written, seen["embed"]), rtol=1e-5, atol=1e-5)
        names = [f"blocks.1.hook_{part}" for part in parts] if isinstance(model, Transformer) else []
        for name in (*names, "hook_embed", "unembed.out", "blocks.0.attn_out"):
            with edit(model, {name: lambda x: x + x.square()}):
                assert not torch.allclose(model(tokens), logits, atol=1e-4), name
    model = perturbed_transformer(SMALL)
    with trace(model, "blocks.0.mlp.hook_post") as seen:
        model(tokens_for(model, 1, 3))
    assert seen["layers.0.mlp.hidden"].shape == (1, 3, model.layers[0].mlp.down_proj.in_features)


def test_an_edit_of_another_shape_is_refused() -> None:
    model = perturbed_multiscreen(TINY)
    with (
        refuses(
            r"the edit of layers.0.tiles.v must return torch.float32 \(1, 3, 3, 3\) as it got, got torch.float32 \(1"
        ),
        edit(model, {"layers.0.v": lambda v: v[:, :1]}),
    ):
        model(tokens_for(model, 1, 3))


def test_a_call_can_be_edited() -> None:
    """Replace the mechanism of one layer and keep its scores."""
    model = perturbed_transformer(SMALL)
    tokens = tokens_for(model, 1, 7)
    swap = call_taps(model)[1].editing(lambda call: dataclasses.replace(call, mechanism=find("sparsemax")))
    with swap, trace(model, "layers.*.relevance") as traced:
        model(tokens)
    assert bool((traced["layers.0.attention.relevance"].tril() > 0).sum() == 2 * 7 * 8 / 2)
    assert bool((traced["layers.1.attention.relevance"].tril() > 0).sum() < 2 * 7 * 8 / 2)


def test_an_unknown_tap_shows_the_nearest_five() -> None:
    model = perturbed_multiscreen(TINY)
    with pytest.raises(KeysiftError) as error, trace(model, "layers.0.relevanse"):
        pass
    nearest_taps = str(error.value).split("taps: ")[1].split(", ")
    assert len(nearest_taps) == 5
    assert "layers.0.tiles.relevance" in nearest_taps
    assert f"nearest of {len(taps(model))} taps" in str(error.value)


def test_a_model_without_taps_is_refused_with_advice() -> None:
    with refuses("the model has no taps; .*keysift.hub.taps"), trace(torch.nn.Linear(2, 2), "layers.*.relevance"):
        pass
