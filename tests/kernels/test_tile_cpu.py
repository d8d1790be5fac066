"""The fused tile operator agrees with the definition in the output and in every gradient, in every variant."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from keysift.kernels.attend import attend, force_backend
from keysift.kernels.cpu import library
from keysift.kernels.positions import Positions
from keysift.kernels.tiles import explain_tiles, make_tile_call, run_tiles
from keysift.mechanisms import find
from keysift.mechanisms.screening import SCREENING, Prepare, prepare_without_mipe
from keysift.mechanisms.spec import Mechanism, Site
from keysift.verify.agreement import Errors
from tests.forked import run_pytest
from tests.kernels.checks import poison_outputs
from tests.machine import needs_kernel
from tests.refusals import refuses

INF = math.inf
pytestmark = needs_kernel
Tensors = dict[str, Tensor]


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs start as NaN, so that an entry the kernel does not write fails the test."""
    poison_outputs(monkeypatch)


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    loaded = library.load()
    loaded.keysift_set_threads(None, None, request.param)
    yield
    library._share_threads(loaded)


def tile_inputs(
    tokens: int, window: list[float], *, widths: tuple[int, int] = (16, 64), gated: bool = True, seed: int = 0
) -> Tensors:
    """q and k around one direction, so that many keys are accepted, and gates on both sides of zero."""
    generator = torch.Generator().manual_seed(1000 * tokens + seed)
    heads, (key_width, value_width) = len(window), widths

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    centre = 1.2 * normal(1, 1, 1, key_width)
    q, k = ((centre + normal(2, tokens, heads, key_width)).flatten(2) for _ in range(2))
    values = [2 * normal(2, tokens, heads * value_width) for _ in range(2 if gated else 1)]
    return {
        "projected": torch.cat((q, k, *values), dim=2),
        "window": torch.tensor(window, dtype=torch.float64),
        "acceptance": torch.full((heads,), 0.9, dtype=torch.float64),
        "scale": 0.5 + torch.arange(heads, dtype=torch.float64),
    }


def parts(projected: Tensor, heads: int, key_width: int, gated: bool) -> list[Tensor]:
    """q, k, v and g, B H T K or V."""
    keys = heads * key_width
    values = (projected.shape[2] - 2 * keys) // (2 if gated else 1)
    channels = projected.split([keys, keys, *([values] * (2 if gated else 1))], dim=2)
    return [x.unflatten(2, (heads, -1)).transpose(1, 2) for x in channels]


def definition(x: Tensors, mechanism: Mechanism, positions: Positions, key_width: int, gated: bool) -> Tensor:
    q, k, v, *g = parts(x["projected"], len(x["window"]), key_width, gated)
    scalars = {name: value for name, value in x.items() if name not in ("projected", "scale")}
    u = attend(mechanism, q, k, v, scalars=scalars, positions=positions, backend="dense")
    gate = torch.tanh(F.silu(g[0])) if gated else torch.ones(())
    return (u * gate * x["scale"].to(u.dtype)[:, None, None]).transpose(1, 2).flatten(2)


def fused(x: Tensors, mechanism: Mechanism, positions: Positions, key_width: int, gated: bool) -> Tensor:
    heads = len(x["window"])
    value_width = parts(x["projected"], heads, key_width, gated)[2].shape[3]
    site = Site(heads=heads, key_width=key_width, value_width=value_width)
    assert not explain_tiles(mechanism, site, x["projected"], positions).declined
    call = make_tile_call(
        mechanism,
        x["projected"],
        site,
        gated=gated,
        scalars={name: value for name, value in x.items() if name not in ("projected", "scale")},
        scale_H=x["scale"],
        positions=positions,
    )
    return run_tiles(call)


def with_gradients(run: Callable[..., Tensor], x: Tensors, dtype: torch.dtype, *arguments: object) -> Tensors:
    scalar = torch.float64 if dtype == torch.float64 else torch.float32
    leaves = {name: v.to(dtype if name == "projected" else scalar).requires_grad_() for name, v in x.items()}
    out = run(leaves, *arguments)
    towards = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).sin().view(out.shape).add(0.3)
    grads = torch.autograd.grad((out.double() * towards).sum(), list(leaves.values()), allow_unused=True)
    zeros = (
        torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves.values(), grads, strict=True)
    )
    return {"output": out.detach().double()} | {
        f"gradient of {name}": grad.double() for name, grad in zip(leaves, zeros, strict=True)
    }


def agrees(
    *draws: Tensors,
    dtype: torch.dtype = torch.float32,
    mechanism: Mechanism = SCREENING,
    positions: Positions | None = None,
    key_width: int = 16,
    gated: bool = True,
) -> Tensors:
    """The error against the definition in fp64 is at most twice that of plain torch in the same dtype."""
    errors: dict[str, Errors] = {}
    result: Tensors = {}
    for draw in draws:
        tokens = draw["projected"].shape[1]
        rest = (mechanism, positions or Positions.counted(tokens), key_width, gated)
        rounded = {name: v.to(dtype) if name == "projected" else v.float() for name, v in draw.items()}
        exact = with_gradients(definition, rounded, torch.float64, *rest)
        plain = with_gradients(definition, rounded, dtype, *rest)
        result = with_gradients(fused, rounded, dtype, *rest)
        for name, expected in exact.items():
            last = errors.get(name, Errors())
            errors[name] = Errors(
                plain=max(last.plain, (plain[name] - expected).abs().max().item()),
                backend=max(last.backend, (result[name] - expected).abs().nan_to_num(INF).max().item()),
                size=max(last.size, expected.abs().max().item()),
            )
    for name, error in errors.items():
        assert error.backend <= error.allowed(dtype), (name, error)
    assert result["output"].count_nonzero() > 0.3 * result["output"].numel(), "too few keys are accepted"
    return result


@pytest.mark.parametrize("tokens", [1, 15, 63, 64, 65, 200])
@pytest.mark.parametrize("window", [[0.7, 2.0], [17.0, 100.25], [257.0, INF]], ids=str)
def test_lengths_and_windows(tokens: int, window: list[float]) -> None:
    agrees(*(tile_inputs(tokens, window, seed=seed) for seed in range(3)))


def test_threads(threads: None) -> None:
    agrees(*(tile_inputs(600, [3.0, 200.0], seed=seed) for seed in range(3)))


def test_the_number_of_threads_changes_nothing() -> None:
    x, loaded, outs = tile_inputs(600, [3.0, 200.0]), library.load(), []
    for count in (1, 2):
        loaded.keysift_set_threads(None, None, count)
        outs.append(with_gradients(fused, x, torch.float32, SCREENING, Positions.counted(600), 16, True))
    library._share_threads(loaded)
    for name in outs[0]:
        assert torch.equal(outs[0][name], outs[1][name]), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_half_precision(dtype: torch.dtype) -> None:
    agrees(*(tile_inputs(70, [9.0, INF], seed=seed) for seed in range(3)), dtype=dtype)


@pytest.mark.parametrize("widths", [(2, 1), (3, 5), (16, 128), (32, 64), (40, 100)], ids=str)
def test_widths(widths: tuple[int, int]) -> None:
    agrees(*(tile_inputs(37, [5.5, INF], widths=widths, seed=seed) for seed in range(3)), key_width=widths[0])


def test_without_a_gate() -> None:
    agrees(*(tile_inputs(70, [9.0, INF], gated=False, seed=seed) for seed in range(3)), gated=False)


def test_another_window_threshold() -> None:
    agrees(tile_inputs(70, [9.0, 30.0]), mechanism=replace(SCREENING, prepare=(Prepare(20.0),)))


def test_ablations() -> None:
    without_mipe = replace(SCREENING, name="without_mipe", prepare=(prepare_without_mipe,))
    for mechanism in (without_mipe, replace(SCREENING, name="plain", finish=()), replace(without_mipe, finish=())):
        x = tile_inputs(70, [9.0, INF])
        if mechanism.prepare == (prepare_without_mipe,):
            x["effective_window"] = x["window"]
        agrees(x, mechanism=mechanism)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    "positions",
    [Positions.packed([[30, 1, 20], [7, 63]], 80), Positions.padded([11, 0], 80), Positions.padded([80, 3], 80)],
    ids=["documents", "padding", "an empty row"],
)
def test_segments(positions: Positions, dtype: torch.dtype) -> None:
    result = agrees(*(tile_inputs(80, [9.0, 70.0], seed=seed) for seed in range(3)), positions=positions, dtype=dtype)
    assert positions.document is not None
    padding = positions.document[:, 0] < 0
    assert not result["output"][padding].any()
    assert not result["gradient of projected"][padding].any()


def test_gates_at_both_ends() -> None:
    """Gates of 0, of 1 and near their minimum, and gates whose exponential overflows."""
    x = tile_inputs(40, [9.0, INF])
    gates = torch.tensor([0.0, -0.0, 1e-30, -1.27, 30.0, -30.0, 88.5, -88.5, 95.0, -95.0, 1e4, -1e4])
    x["projected"][:, :, -128:] = gates.repeat(11)[:128]
    agrees(x)


@pytest.mark.parametrize("what", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_non_finite_rows(part: int, what: float) -> None:
    """A row that sees NaN or inf is NaN in all channels and passes no gradient to q, k and v. Other rows stay."""
    clean = {name: value.float() for name, value in tile_inputs(90, [9.0, 70.0]).items()}
    dirty = {name: value.clone() for name, value in clean.items()}
    parts(dirty["projected"], 2, 16, True)[part][0, 1, 20, 3] = what
    rest = (SCREENING, Positions.counted(90), 16, True)
    sees = torch.zeros(2, 90, 2, dtype=torch.bool)
    sees[0, 20 : 21 if part == 0 else 90, 1] = True
    results = []
    for x in (clean, dirty):
        leaf = x["projected"].requires_grad_()
        out = fused(x, *rest).unflatten(2, (2, -1))
        (grad,) = torch.autograd.grad(out[~sees].sum(), leaf)
        results.append((out.detach(), grad))
    assert torch.equal(results[1][0].isnan().all(-1), sees)
    assert torch.equal(results[1][0].isnan().any(-1), sees)
    torch.testing.assert_close(results[1][0][~sees], results[0][0][~sees])
    for fast, slow in zip(*(parts(grad, 2, 16, True)[:3] for _, grad in reversed(results)), strict=True):
        torch.testing.assert_close(fast, slow)
    with torch.no_grad():
        assert torch.equal(fused(dirty, *rest).unflatten(2, (2, -1)).isnan().all(-1), sees)


def test_masked_tokens_may_hold_anything() -> None:
    positions = Positions.padded([11, 0], 40)
    clean = tile_inputs(40, [9.0, 70.0])
    dirty = {name: value.clone() for name, value in clean.items()}
    dirty["projected"][0, :11] = math.nan
    outs = [with_gradients(fused, x, torch.float32, SCREENING, positions, 16, True) for x in (clean, dirty)]
    for name in outs[0]:
        assert torch.equal(outs[0][name], outs[1][name]), name


def test_earlier_tokens_as_keys_only() -> None:
    """The last rows of a longer call."""
    x = {name: value.float() for name, value in tile_inputs(150, [9.0, 70.0]).items()}
    with torch.no_grad():
        whole = fused(x, SCREENING, Positions.counted(150), 16, True)
        last = fused(x, SCREENING, Positions.counted(50, 150), 16, True)
    torch.testing.assert_close(last, whole[:, 100:], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["avx512", "avx2", "plain"])
def test_every_instruction_set(isa: str) -> None:
    """In a separate process, because the variant is chosen when the library loads."""
    if isa not in library.instruction_sets():
        pytest.skip(f"THIS MACHINE CANNOT RUN {isa}; it runs {', '.join(library.instruction_sets())}")
    only = "lengths_and_windows and (15 or 65) or half or widths or gate or segments or non_finite"
    outcome = run_pytest(__file__, "-k", only, KEYSIFT_ISA=isa)
    assert outcome.code == 0, outcome.output[-2000:]


def test_operator_passes_opcheck() -> None:
    x = {name: value.float().requires_grad_() for name, value in tile_inputs(20, [9.0, 30.0]).items()}
    tensors = tuple(x[name] for name in ("projected", "window", "window", "acceptance", "scale"))
    for segments in (None, Positions.packed([[7, 13], [4]], 20).segments):
        arguments = (*tensors, segments, 0, 16, True, 0, 256.0)
        torch.library.opcheck(torch.ops.keysift.tile.default, arguments, rtol=1e-4, atol=1e-5)


def test_has_no_second_derivative() -> None:
    x = {name: value.float().requires_grad_() for name, value in tile_inputs(5, [9.0]).items()}
    out = fused(x, SCREENING, Positions.counted(5), 16, True)
    (grad,) = torch.autograd.grad(out.sum(), x["projected"], create_graph=True)
    with refuses("this backend has no second derivatives"):
        torch.autograd.grad(grad.sum(), x["projected"])


def test_is_chosen_or_gives_a_reason() -> None:
    def reason(
        mechanism: Mechanism = SCREENING,
        dtype: torch.dtype = torch.float32,
        positions: Positions | None = None,
        batch: int = 1,
        key_width: int = 4,
    ) -> str | None:
        site = Site(heads=2, key_width=key_width, value_width=3)
        like = torch.zeros(batch, 8, 1, dtype=dtype)
        return explain_tiles(mechanism, site, like, positions or Positions.counted(8)).declined.get("tile_cpu")

    assert reason() is None
    assert reason(find("screening+value_gate")) == "it computes screening, not screening+value_gate"
    assert reason(dtype=torch.float64) == "torch.float64 is not supported"
    assert reason(key_width=1) == "the rotation needs a key width of at least 2"
    assert reason(batch=0) == "the batch is empty"
    explicit = Positions.explicit(torch.arange(8), torch.arange(8))
    assert reason(positions=explicit) == "it needs consecutive positions or segments, not explicit positions"
    earlier = Positions.counted(3, 8)
    assert reason(positions=earlier) == "it has no gradient where earlier tokens are keys only"
    with force_backend("dense"):
        assert reason() == "the backend dense was asked for"
    with force_backend("screening_cpu"):
        assert reason() is None
    with torch.autograd.forward_ad.dual_level():
        assert reason() == "it has no forward-mode derivative"
    torch.func.vmap(lambda x: (_expect(reason(), "torch.func cannot transform a compiled operator"), x)[1])(
        torch.ones(2)
    )


def _expect(actual: str | None, expected: str) -> None:
    assert actual == expected
