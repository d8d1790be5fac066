"""Whole models: initial values, every config field, integer positions, refusals."""

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch

import keysift
from keysift.mechanisms import MECHANISMS
from keysift.models.multiscreen import Multiscreen, MultiscreenConfig
from keysift.models.transformer import Transformer, TransformerConfig
from keysift.nn.inference import Inference
from tests.machine import needs_kernel
from tests.models import checks
from tests.models.checks import TINY, perturbed_multiscreen, perturbed_transformer, tokens_for
from tests.refusals import refuses

BASE = TransformerConfig(vocab_size=11, depth=2, heads=4, width=16, context=12, mechanism="sigmoid")


def seeded(config: MultiscreenConfig | TransformerConfig) -> Multiscreen | Transformer:
    generator = torch.Generator().manual_seed(0)
    return Multiscreen(config, generator) if isinstance(config, MultiscreenConfig) else Transformer(config, generator)


MULTISCREEN_CHANGES = {
    "vocab_size": 10,
    "depth": 3,
    "tiles": 2,
    "width": 7,
    "key_width": 6,
    "value_width": 5,
    "position": "rope",
    "norm": "none",
    "gate": False,
    "acceptance": 0.5001,
    "acceptance_start": (0.5001,),
    "window_threshold": 255.0,
}
WINDOWED = dataclasses.replace(BASE, window=4, qk_norm=True)
TRANSFORMER_CHANGES = {
    "vocab_size": 12,
    "depth": 3,
    "heads": 2,
    "width": 24,
    "key_heads": 2,
    "context": 13,
    "mechanism": "softmax",
    "position": "none",
    "window": 3,
    "kept": 1,
    "rope_theta": 500.0,
    "rope_share": 0.5,
    "rope_rates": "linear:factor=2",
    "qk_norm": False,
    "qk_gains": "per_head",
    "shift": "values",
    "head_width": 6,
    "hidden_width": 40,
    "norm_eps": 1e-2,
    "final_gain": True,
    "tied_embeddings": False,
    "attention_bias": "qkv",
    "initial_std": "version1",
}


@pytest.mark.parametrize(
    ("base", "changes"),
    [(TINY, MULTISCREEN_CHANGES), (WINDOWED, TRANSFORMER_CHANGES)],
    ids=["multiscreen", "transformer"],
)
def test_every_config_field_has_an_effect(
    base: MultiscreenConfig | TransformerConfig, changes: dict[str, object]
) -> None:
    """Each field changes the parameters or the logits, except the context of a Multiscreen, which is metadata."""
    metadata = {"context"} if isinstance(base, MultiscreenConfig) else set()
    assert set(changes) | metadata == {field.name for field in dataclasses.fields(base)}
    model = seeded(base)
    tokens = tokens_for(model, 1, 6)
    shapes = {name: p.shape for name, p in model.named_parameters()}
    for name, value in changes.items():
        changed = seeded(dataclasses.replace(base, **{name: value}))
        if {n: p.shape for n, p in changed.named_parameters()} == shapes:
            assert not torch.equal(model(tokens), changed(tokens)), name


def test_every_inference_option_has_an_effect() -> None:
    model = perturbed_multiscreen(dataclasses.replace(TINY, position="rope"), windows=(2.5, 6.0, 9.3))
    tokens = tokens_for(model, 1, 20)
    changes = {"expand_windows": 5, "rope_factor": 2.0, "rope_scaling": "ntk:factor=9"}
    # search changes what a decoded token reads and never the result: tests/models/test_search.py.
    assert set(changes) | {"search"} == {field.name for field in dataclasses.fields(Inference)}
    for name, value in changes.items():
        changed = model(tokens, inference=Inference(**{name: value}))
        assert (changed - model(tokens)).abs().max() > 1e-3, name


def test_initial_values_of_table_4() -> None:
    config = MultiscreenConfig(vocab_size=2000, depth=3, tiles=5, width=400)
    model = Multiscreen(config, torch.Generator().manual_seed(0))
    expected = {
        "q_proj": 0.1 / 4,
        "k_proj": 0.1 / 4,
        "v_proj": 0.1 / 8,
        "gating.gate_proj": 0.1,
        "o_proj": 0.1 / 20,
    }
    for layer in model.layers:
        for name, std in expected.items():
            weight = layer.tiles.get_submodule(name).weight
            assert weight.std().item() == pytest.approx(std, rel=0.03), name
            assert abs(weight.mean().item()) < std / 20, name
    for layer, scalars in zip(model.layers, model.scalars(), strict=True):
        windows = scalars["window"]
        assert windows[0] == 2
        assert windows[-1].item() == pytest.approx(257)
        torch.testing.assert_close(layer.scalars.s_w.diff(), torch.full((4,), math.log(256) / 4))
        torch.testing.assert_close(scalars["acceptance"], torch.full((5,), 0.5))
        torch.testing.assert_close(layer.tiles.s_O, torch.full((5,), -0.5 * math.log(15)))
    assert model.embedding.weight.std().item() == pytest.approx(0.1 / 20, rel=0.02)
    assert model.embedding.s_E == 0
    assert model.embedding.s_F.item() == pytest.approx(0.5 * math.log(400))
    alone = Multiscreen(dataclasses.replace(config, tiles=1))
    assert alone.layers[0].scalars.s_w.tolist() == [0.0]


@pytest.mark.parametrize(
    ("init", "std", "out_std"),
    [("version3", math.sqrt(2 / (5 * 240)), 2 / (4 * math.sqrt(240))), ("version1", 0.02, 0.02 / math.sqrt(8))],
)
def test_initial_values_of_the_baseline(init: str, std: float, out_std: float) -> None:
    config = TransformerConfig(vocab_size=500, depth=4, heads=4, width=240, initial_std=init)
    model = Transformer(config, torch.Generator().manual_seed(0))
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            assert bool((parameter == 1).all())
        else:
            expected = out_std if "o_proj" in name or "down_proj" in name else std
            assert parameter.std().item() == pytest.approx(expected, rel=0.02), name


def test_seed_determines_initial_weights() -> None:
    for config in (TINY, dataclasses.replace(BASE, mechanism="differential_v1")):
        model, same_seed, other_seed = (
            seeded(config),
            seeded(config),
            type(seeded(config))(config, torch.Generator().manual_seed(1)),
        )
        for (name, a), b, c in zip(
            model.named_parameters(), same_seed.parameters(), other_seed.parameters(), strict=True
        ):
            assert torch.equal(a, b), name
            if a.ndim == 2:
                assert not torch.equal(a, c), name


def test_names_of_the_weights() -> None:
    """Scalars have the paper's symbols; projections have the names that LoRA recipes expect."""
    names = {
        name.partition("layers.0.")[2] or name
        for name in perturbed_multiscreen(TINY).state_dict()
        if "layers.1" not in name
    }
    projections = {f"tiles.{part}_proj.weight" for part in ("q", "k", "v", "o", "gating.gate")}
    scalars = {"tiles.scalars.s_w", "tiles.scalars.s_r", "tiles.s_O"}
    assert names == projections | scalars | {"embedding.weight", "embedding.s_E", "embedding.s_F"}


@pytest.mark.parametrize("name", MECHANISMS.names())
def test_every_parameter_gets_a_gradient(name: str) -> None:
    """Every parameter gets a gradient, except those that the mechanism declares flat."""
    model = perturbed_transformer(dataclasses.replace(BASE, mechanism=name))
    model(tokens_for(model, 2, 10)).logsumexp(-1).sum().backward()
    mechanism = MECHANISMS.find(name)
    for label, parameter in model.named_parameters():
        if any(label.endswith(f"raw_{flat}") for flat in mechanism.flat):
            continue
        assert parameter.grad is not None, label
        assert parameter.grad.isfinite().all(), label
        if "k_proj" not in label and "q_proj" not in label:
            assert parameter.grad.abs().max() > 0, label


def test_differential_layouts() -> None:
    """Version 1 pairs existing heads, with the same parameter count. Version 2 adds second queries and a lambda."""
    softmax, first, second = (
        seeded(dataclasses.replace(BASE, mechanism=name)).layers[0].attention
        for name in ("softmax", "differential_v1", "differential_v2")
    )
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        plain = softmax.get_submodule(name).weight.shape
        assert first.get_submodule(name).weight.shape == plain
        assert second.get_submodule(name).weight.shape == ((32, 16) if name == "q_proj" else plain)
    assert first.scalars.raw_lam.shape == (4, 4)
    assert first.scalars.raw_gain.shape == (8,)
    assert second.scalars.raw_lam.weight.shape == (4, 16)
    assert float(first.scalars.linked(Inference())["lam_init"]) == pytest.approx(0.2)
    deeper = seeded(dataclasses.replace(BASE, mechanism="differential_v1")).layers[1].attention
    assert float(deeper.scalars.linked(Inference())["lam_init"]) == pytest.approx(0.8 - 0.6 * math.exp(-0.3))


def test_causal_in_bf16() -> None:
    checks.is_causal_in_bf16()


def test_window_expansion_agrees_with_and_without_cache() -> None:
    checks.window_expansion_agrees()


def test_mipe_rotates_by_pi() -> None:
    checks.mipe_matches_formula()


def test_shifting_all_positions_changes_nothing() -> None:
    model = perturbed_multiscreen(TINY).double()
    tokens = tokens_for(model, 1, 12)
    torch.testing.assert_close(
        model(tokens), model(tokens, positions=checks.positions_from(131_000, tokens)), rtol=1e-9, atol=1e-9
    )


def test_padding_is_masked_and_has_no_position() -> None:
    model = perturbed_multiscreen(TINY)
    tokens = tokens_for(model, 1, 8)
    keep = torch.tensor([[True, True, False, True, False, True, True, True]])
    altered = tokens.clone()
    altered[~keep] = (altered[~keep] + 1) % 9
    out = model(tokens, keep=keep)
    checks.close(out[keep], model(tokens[keep][None])[0])
    assert torch.equal(out[keep], model(altered, keep=keep)[keep])


def test_public_constructors_and_a_hybrid_stack() -> None:
    model = keysift.Multiscreen(keysift.MultiscreenConfig.psi(3, vocab_size=20))
    assert model(torch.zeros(1, 4, dtype=torch.int64)).shape == (1, 4, 20)
    assert (model.config.depth, model.config.tiles, model.config.width) == (3, 3, 9)
    hybrid = keysift.Transformer(dataclasses.replace(BASE, mechanism=("softmax", "screening+output_gate")))
    assert [layer.attention.mechanism.name for layer in hybrid.layers] == ["softmax", "screening+output_gate"]


def test_refusals() -> None:
    model = perturbed_multiscreen(TINY)
    transformer = seeded(BASE)
    with refuses("tokens must be int64, got torch.float32"):
        model(torch.zeros(1, 3))
    with refuses("keep must be boolean and shaped like tokens"):
        model(torch.zeros(1, 3, dtype=torch.int64), keep=torch.ones(1, 3))
    with refuses(r"tokens must lie in 0..8, got 9; is this the tokenizer"):
        model(torch.tensor([[9]]))
    with refuses(r"tokens must lie in 0..8, got -1"):
        model(torch.tensor([[-1]]))
    with refuses("no layer of this model has a window"):
        transformer(torch.zeros(1, 3, dtype=torch.int64), inference=Inference(expand_windows=5))
    with refuses("has no RoPE to scale"):
        model.cache(1, inference=Inference(rope_factor=2.0))
    scaled = seeded(dataclasses.replace(BASE, rope_rates="linear:factor=2"))
    with refuses("was trained with the RoPE scaling linear:factor=2, which rope_scaling would replace"):
        scaled(torch.zeros(1, 3, dtype=torch.int64), inference=Inference(rope_scaling="ntk:factor=2"))
    with refuses("expand_windows is the training length"):
        Inference(expand_windows=0)
    with refuses("rope_factor must be a positive number"):
        Inference(rope_factor=0.0)
    with refuses("tiles must be at least 1, got 0"):
        dataclasses.replace(TINY, tiles=0)
    with refuses("key_width must be at least 2 for MiPE, got"):
        dataclasses.replace(TINY, key_width=1)
    with refuses(r"a fixed acceptance must be a number in \(0, 1\], got 1.5"):
        dataclasses.replace(TINY, acceptance=1.5)
    with refuses(r"one or two numbers in \(0, 1\), got \(0.5, 1.0\)"):
        dataclasses.replace(TINY, acceptance_start=(0.5, 1.0))
    with refuses("window_threshold must be finite and at least 1, got inf"):
        dataclasses.replace(TINY, window_threshold=math.inf)
    with refuses("a fixed acceptance has no start"):
        dataclasses.replace(TINY, acceptance=0.5, acceptance_start=(0.9,))
    with refuses("RoPE rotates pairs of channels, got 1 of a key width of 5"):
        seeded(dataclasses.replace(TINY, position="rope", key_width=5))
    with refuses("MultiscreenConfig.context must be at least 1, got 0"):
        dataclasses.replace(TINY, context=0)
    with refuses("context must be at least 1"):
        dataclasses.replace(BASE, context=0)
    with refuses("width must be a multiple of heads"):
        dataclasses.replace(BASE, width=18)
    for name in ("head_width", "hidden_width"):
        with refuses(f"{name} must be at least 1, got 0"):
            dataclasses.replace(BASE, **{name: 0})
    with refuses(r"norm_eps must lie in \(0, 1\], got 0"):
        dataclasses.replace(BASE, norm_eps=0.0)
    with refuses("rope_theta must be above 1 and finite, got 1"):
        dataclasses.replace(BASE, rope_theta=1.0)
    with refuses("key_heads must divide heads"):
        dataclasses.replace(BASE, key_heads=3)
    with refuses("lists 3 names and depth is 2"):
        dataclasses.replace(BASE, mechanism=("softmax",) * 3)
    with refuses("did you mean 'softmax'"):
        dataclasses.replace(BASE, mechanism="sofmax")
    with refuses("folds 2 heads into one"):
        seeded(dataclasses.replace(BASE, heads=1, mechanism="differential_v1"))


@needs_kernel
@pytest.mark.slow
def test_a_compiled_multiscreen_keeps_the_compiled_kernel() -> None:
    """Compiles as one graph with the same gradients: positions that count from 0 are not inspected."""
    model = Multiscreen(MultiscreenConfig.psi(2, vocab_size=11))
    tokens = torch.randint(0, 11, (2, 9))
    operators: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        operators.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    def gradients(forward: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        return list(torch.autograd.grad(forward(tokens).square().sum(), list(model.parameters())))

    plain = gradients(model)
    for ours, theirs in zip(gradients(torch.compile(model, fullgraph=True, backend=backend)), plain, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert sum("keysift.tile" in name for name in operators) == 2, "one kernel call per layer"


@pytest.mark.parametrize("raw", [-200.0, 200.0])
def test_acceptance_at_the_ends_of_fp32(raw: float) -> None:
    """sigmoid gives exactly 0 and 1 there. Such a tile must not produce NaN or inf during training."""
    model = Multiscreen(MultiscreenConfig.psi(2, vocab_size=11))
    with torch.no_grad():
        for layer in model.layers:
            layer.scalars.s_r.fill_(raw)
    model(torch.randint(0, 11, (2, 9))).square().sum().backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert bool(parameter.grad.isfinite().all())


def test_initial_windows_end_at_the_threshold() -> None:
    model = Multiscreen(MultiscreenConfig(vocab_size=7, depth=1, tiles=3, width=8, window_threshold=64.0))
    torch.testing.assert_close(model.scalars()[0]["window"], torch.tensor([2.0, 9.0, 65.0]))


@pytest.mark.parametrize(("start", "expected"), [((0.98,), [0.98, 0.98, 0.98]), ((0.5, 0.98), [0.5, 0.875, 0.98])])
def test_initial_acceptance_follows_the_config(start: tuple[float, ...], expected: list[float]) -> None:
    model = Multiscreen(MultiscreenConfig(vocab_size=7, depth=2, tiles=3, width=8, acceptance_start=start))
    for layer in model.layers:
        torch.testing.assert_close(layer.scalars.linked(Inference())["acceptance"], torch.tensor(expected))
        assert layer.scalars.s_r.requires_grad
