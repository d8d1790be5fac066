"""A layer's fused path equals its definition: in value, in every gradient, in pieces, and with wrapped projections."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from keysift import trace
from keysift.kernels.attend import force_backend
from keysift.kernels.positions import Positions
from keysift.kernels.tile_call import TileCall
from keysift.models.architecture import MultiscreenArch
from keysift.models.multiscreen import Multiscreen, MultiscreenConfig
from keysift.nn import fused_tiles
from keysift.nn.inference import Inference
from keysift.nn.rotary import NoRotation
from keysift.nn.tile import Gate, Tiles
from tests.machine import needs_kernel

pytestmark = needs_kernel


def open_model(**settings: object) -> Multiscreen:
    """A model whose tiles accept many keys and change the residual stream; windows of 2 to 257."""
    config = MultiscreenConfig(
        depth=2, tiles=3, width=24, key_width=4, value_width=8, vocab_size=40, acceptance_start=(0.95, 0.95), **settings
    )
    model = Multiscreen(config, torch.Generator().manual_seed(0))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))) / 5)
    return model


def tokens(batch: int, length: int) -> Tensor:
    return torch.randint(40, (batch, length), generator=torch.Generator().manual_seed(1))


def operator_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of queries of every call of the fused operator from here on."""
    calls: list[int] = []
    run = fused_tiles.run_tiles

    def counted(call: TileCall) -> Tensor:
        calls.append(call.positions.queries)
        return run(call)

    monkeypatch.setattr(fused_tiles, "run_tiles", counted)
    return calls


def gradients(model: Multiscreen, run: Callable[[Multiscreen], Tensor]) -> dict[str, Tensor]:
    model = copy.deepcopy(model)
    out = run(model)
    (out * torch.linspace(-1, 1, out.numel()).sin().view(out.shape)).sum().backward()
    return {"output": out.detach()} | {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def same(fast: dict[str, Tensor], slow: dict[str, Tensor]) -> None:
    assert fast.keys() == slow.keys()
    for name, expected in slow.items():
        size = expected.abs().max().item()
        assert torch.allclose(fast[name], expected, rtol=1e-4, atol=2e-6 * size + 1e-7), name


@pytest.mark.parametrize("settings", [{}, {"gate": False}, {"position": "none"}, {"norm": "none"}], ids=str)
def test_equals_the_definition(settings: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_model(**settings)
    calls = operator_calls(monkeypatch)
    fast = gradients(model, lambda m: m(tokens(3, 50)))
    assert calls == [50] * len(model.layers)
    with force_backend("dense"):
        slow = gradients(model, lambda m: m(tokens(3, 50)))
    assert len(calls) == len(model.layers)
    same(fast, slow)


def test_a_tap_reads_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_model()
    calls = operator_calls(monkeypatch)

    def traced(m: Multiscreen) -> Tensor:
        with trace(m, "layers.*.screened") as seen:
            out: Tensor = m(tokens(2, 40))
        assert len(seen) == 2
        return out

    slow = gradients(model, traced)
    assert not calls
    same(gradients(model, lambda m: m(tokens(2, 40))), slow)
    assert calls


@pytest.mark.parametrize(
    "positions",
    [Positions.packed([[9, 31], [40], [5, 5, 5]], 40), Positions.padded([3, 0, 40], 40)],
    ids=["packed", "padded"],
)
def test_rows_in_pieces(positions: Positions, monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_model()
    whole = gradients(model, lambda m: m(tokens(3, 40), positions=positions))
    monkeypatch.setattr(fused_tiles, "PIECE", 80)
    calls = operator_calls(monkeypatch)
    pieces = gradients(model, lambda m: m(tokens(3, 40), positions=positions))
    assert calls == [40] * 4
    same(pieces, whole)


@pytest.mark.parametrize("window", [2.0, 5.0, 60.0, float("inf")])
def test_long_rows_in_pieces(window: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows shorter and longer than a piece, and longer than the text; the last piece is not full."""
    model = open_model()
    with torch.no_grad():
        for layer in model.layers:
            layer.get_parameter("tiles.scalars.s_w")[-1] = torch.tensor(window - 1).log().clamp_max(80)
            layer.get_parameter("tiles.scalars.s_w")[:-1] = 0.3
        text = tokens(2, 150)
        whole = model(text)
        monkeypatch.setattr(fused_tiles, "CUT", 16)
        calls = operator_calls(monkeypatch)
        pieces = model(text)
    assert len(calls) > 2 * len(model.layers)
    torch.testing.assert_close(pieces, whole, rtol=1e-4, atol=1e-5)
    assert (model(text[:, :100]) - whole[:, :100]).abs().max() < 1e-4


def test_window_expansion_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    model, text, inference = open_model(), tokens(1, 120), Inference(expand_windows=100)
    with torch.no_grad():
        whole = model(text, inference=inference)
        assert not torch.allclose(whole, model(text), atol=1e-3)
        monkeypatch.setattr(fused_tiles, "CUT", 16)
        torch.testing.assert_close(model(text, inference=inference), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("names", [("q_proj", "gating.gate_proj", "o_proj"), ("gating",), ("k",), ("rotary",)], ids=str)
def test_hooks_run(names: tuple[str, ...]) -> None:
    model = open_model()
    expected = model(tokens(2, 40))
    seen: list[nn.Module] = []
    for name in names:
        module = model.layers[0].get_submodule(f"tiles.{name}")
        module.register_forward_hook(lambda module, *_: seen.append(module))
    torch.testing.assert_close(model(tokens(2, 40)), expected)
    assert set(seen) == {model.layers[0].get_submodule(f"tiles.{name}") for name in names}


def test_global_hooks_run() -> None:
    model = open_model()
    seen: list[nn.Module] = []
    handle = register_module_forward_hook(lambda module, *_: seen.append(module))
    try:
        model(tokens(2, 40))
    finally:
        handle.remove()
    assert {type(module) for module in seen} >= {nn.Linear, Gate, NoRotation}
    assert {module for module in model.modules() if type(module) is nn.Linear} <= set(seen)


def test_backward_hooks_run() -> None:
    model = open_model()
    seen: list[nn.Module] = []
    projections = [module for module in model.modules() if type(module) is nn.Linear]
    for module in projections:
        module.register_full_backward_hook(lambda module, *_: seen.append(module))
    model(tokens(2, 40)).sum().backward()
    assert set(seen) == set(projections)


def test_wrapped_projections_run() -> None:
    model = open_model()
    expected = model(tokens(2, 40))
    tiles = model.layers[0].get_submodule("tiles")
    assert isinstance(tiles, Tiles)
    tiles.v_proj = nn.Sequential(tiles.v_proj, Double())  # type: ignore[assignment]
    tiles.o_proj = nn.Sequential(tiles.o_proj, Double())  # type: ignore[assignment]
    with torch.no_grad():
        doubled = model(tokens(2, 40))
        with force_backend("dense"):
            torch.testing.assert_close(doubled, model(tokens(2, 40)))
    assert not torch.allclose(doubled, expected)


class Double(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def test_parameters_keep_their_names_and_storage() -> None:
    model = open_model()
    names = [name for name in model.state_dict() if name.startswith("layers.0")]
    assert {"layers.0.tiles.q_proj.weight", "layers.0.tiles.gating.gate_proj.weight"} <= set(names)
    weight = model.get_parameter("layers.0.tiles.q_proj.weight")
    before = model(tokens(1, 40))
    weight.data.mul_(-1)  # as optimizers and loaders write
    assert not torch.allclose(model(tokens(1, 40)), before)


def test_compiles_to_one_graph() -> None:
    model = open_model()
    text = tokens(2, 40)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    same(gradients_of(compiled, model, text), gradients_of(model, model, text))


def gradients_of(run: Callable[[Tensor], Tensor], model: nn.Module, text: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    out = run(text)
    out.square().sum().backward()
    return {"output": out.detach()} | {
        name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
    }


@pytest.mark.parametrize("chunks", [(40,), (25, 15), (1, 39), (30, 1, 9)], ids=str)
@pytest.mark.parametrize("padded", [False, True], ids=["even", "padded"])
def test_cached_chunks_equal_the_full_forward(
    chunks: tuple[int, ...], padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call of a cache is fused and stores its keys; later calls read them."""
    model, text = open_model(), tokens(2, 40)
    keep = torch.ones(2, 40, dtype=torch.bool)
    if padded:
        keep[0, :7] = False
    with torch.no_grad():
        whole = model(text, keep=keep)
        cache = model.cache(2)
        calls = operator_calls(monkeypatch)
        parts = [
            model(part, keep=kept if padded else None, cache=cache)
            for part, kept in zip(text.split(chunks, dim=1), keep.split(chunks, dim=1), strict=True)
        ]
    assert calls == ([] if chunks[0] == 1 else [chunks[0]] * len(model.layers))
    torch.testing.assert_close(torch.cat(parts, dim=1)[keep], whole[keep], rtol=1e-4, atol=1e-5)


def test_autocast() -> None:
    model, text = open_model(), tokens(2, 40)
    with torch.autocast("cpu", torch.bfloat16):
        fast = model(text)
        with force_backend("dense"):
            slow = model(text)
    torch.testing.assert_close(fast, slow, rtol=0.05, atol=0.05 * slow.abs().max().item())


def test_architecture_of_the_paper_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    arch = MultiscreenArch.psi(2)
    model = Multiscreen(MultiscreenConfig(**vars(arch), vocab_size=40), torch.Generator().manual_seed(0))
    calls = operator_calls(monkeypatch)
    model(tokens(1, 8))
    assert calls == [8, 8]
