"""The screening_cpu backend agrees with the definition, gradients included, in every variant and edge case."""

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from keysift.kernels.attend import attend, explain
from keysift.kernels.cpu import library
from keysift.kernels.positions import Positions
from keysift.mechanisms.screening import SCREENING, Prepare, prepare_without_mipe
from keysift.verify.agreement import check_agreement, output_and_gradients
from tests.forked import run_pytest
from tests.kernels.checks import poison_outputs
from tests.machine import needs_kernel
from tests.refusals import refuses

INF = math.inf
BLOCK = 64
pytestmark = needs_kernel


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs start as NaN, so that an entry the kernel does not write fails the test."""
    poison_outputs(monkeypatch)


@pytest.fixture(params=["torch's threads", "own threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    loaded = library.load()
    if request.param == "own threads":
        loaded.keysift_set_threads(None, None, 3)
    yield
    library._share_threads(loaded)


def screening_inputs(
    t: int,
    s: int,
    *,
    window: list[float],
    accept: float = 0.9,
    width: int = 16,
    values: int = 64,
    groups: int | None = None,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Inputs around one direction, so that many keys are accepted and outputs are not zero."""
    generator = torch.Generator().manual_seed(t * 1000 + s + 7 * seed)
    heads = len(window)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    centre = 1.2 * normal(1, 1, 1, width)
    return {
        "q": centre + normal(2, heads, t, width),
        "k": centre + normal(2, groups or heads, s, width),
        "v": normal(2, groups or heads, s, values),
        "window": torch.tensor(window, dtype=torch.float64),
        "acceptance": torch.full((heads,), accept, dtype=torch.float64),
    }


def agrees(*draws: dict[str, Tensor], **options: Any) -> dict[str, Tensor]:
    fast = check_agreement(SCREENING, *draws, backend="screening_cpu", **options)
    assert fast["output"].count_nonzero() > 0.3 * fast["output"].numel(), "too few keys are accepted"
    return fast


@pytest.mark.parametrize("length", [1, 15, 63, BLOCK, BLOCK + 1, 200])
@pytest.mark.parametrize(
    "window", [[0.3, 0.5], [0.7, 1.0], [2.0, 2.5], [17.0, 100.25], [256.0, 257.0], [INF, 40.0]], ids=str
)
def test_lengths_and_windows(length: int, window: list[float], threads: None) -> None:
    agrees(*(screening_inputs(length, length, window=window, seed=seed) for seed in range(3)))


@pytest.mark.slow
@pytest.mark.parametrize("window", [[2.0, 257.0], [1000.25, INF]], ids=str)
def test_a_thousand_tokens(window: list[float]) -> None:
    agrees(screening_inputs(1000, 1000, window=window))


@pytest.mark.parametrize("accept", [0.01, 0.1, 0.5, 0.99, 1.0])
def test_acceptance(accept: float) -> None:
    draws = [screening_inputs(70, 70, window=[9.0, INF], accept=accept, seed=seed) for seed in range(4)]
    for tensors in draws:  # a narrow acceptance accepts only keys close to the query
        tensors["k"] = tensors["q"] + 0.02 * tensors["k"]
    agrees(*draws)


@pytest.mark.parametrize("width", [2, 3, 16, 32, 40])
@pytest.mark.parametrize("values", [1, 5, 64, 100, 128])
def test_widths(width: int, values: int) -> None:
    agrees(*(screening_inputs(37, 37, window=[5.5, INF], width=width, values=values, seed=seed) for seed in range(3)))


@pytest.mark.parametrize(("t", "s"), [(1, 300), (5, 64), (64, 65), (33, 20), (7, 1)])
def test_fewer_or_more_queries_than_keys(t: int, s: int) -> None:
    fast = check_agreement(SCREENING, screening_inputs(t, s, window=[9.0, INF]), backend="screening_cpu")
    assert fast["output"].count_nonzero() > 0


@pytest.mark.parametrize("start", [0, 255, 4095, 131_071, 10_000_000])
def test_large_positions(start: int) -> None:
    agrees(screening_inputs(20, 40, window=[3.5, 70.0]), positions=Positions.counted(20, 40, start=start))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("keys", [1, 33, BLOCK, 91])
@pytest.mark.parametrize("gap", [0, 1, 19, 20, 33, BLOCK, 200])
def test_queries_far_after_the_last_key(gap: int, keys: int, dtype: torch.dtype) -> None:
    """Some keys, or all of them, are outside the windows and are not read."""
    leaves = [torch.randn(1, 2, n, 8).to(dtype).requires_grad_() for n in (7, keys, keys)]
    options: Any = {
        "scalars": {"window": torch.tensor([3.5, 20.0]), "acceptance": 0.9},
        "positions": Positions(queries=7, keys=keys, first=keys + gap, key_first=0),
    }
    results = {}
    for backend in ("screening_cpu", "dense"):
        out = attend("screening", *leaves, backend=backend, **options)
        results[backend] = (out, *torch.autograd.grad(out.sum(), leaves))
    torch.testing.assert_close(*results.values())
    assert bool(results["dense"][0].any()) == (gap < 19) or keys == 1


def test_every_batch_row_at_its_own_position() -> None:
    """As in a cache with rows of 40 and 33 tokens, of which the last 20 are new."""
    tokens = Positions.padded([0, 0], 20, start=[30, 1000])
    agrees(screening_inputs(20, 40, window=[3.5, 70.0]), positions=tokens.with_cached_keys([10, 987], [40, 33], 40))


def test_grouped_heads() -> None:
    agrees(screening_inputs(50, 50, window=[3.0, 9.0, 20.0, INF], groups=2))


def test_window_expansion() -> None:
    tensors = screening_inputs(90, 90, window=[5.0, 300.0])
    tensors["effective_window"] = torch.tensor([5.0, INF], dtype=torch.float64)
    agrees(tensors)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_half_precision(dtype: torch.dtype) -> None:
    agrees(screening_inputs(70, 70, window=[9.0, INF]), dtype=dtype)


def test_ablations() -> None:
    without_mipe = replace(SCREENING, name="without_mipe", prepare=(prepare_without_mipe,))
    plain, narrow = (
        replace(SCREENING, name="plain", finish=()),
        replace(SCREENING, name="narrow", prepare=(Prepare(threshold=12.0),)),
    )
    for mechanism in (without_mipe, plain, replace(without_mipe, finish=()), narrow):
        tensors = screening_inputs(70, 70, window=[9.0, INF])
        if mechanism.prepare == (prepare_without_mipe,):
            tensors["effective_window"] = tensors["window"]
        check_agreement(mechanism, tensors, backend="screening_cpu")


def test_strided_inputs() -> None:
    tensors = screening_inputs(40, 40, window=[9.0, INF])
    q, k, v = (tensors[name].float() for name in "qkv")
    scalars = {"window": tensors["window"].float(), "acceptance": 0.9}
    # The layout of a projection: B T H K, transposed to B H T K.
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    backwards = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v)]
    expected = attend("screening", q, k, v, scalars=scalars, backend="screening_cpu")
    for views in (strided, backwards):
        assert torch.equal(attend("screening", *views, scalars=scalars, backend="screening_cpu"), expected)


def test_edges_are_exact() -> None:
    """A key exactly at the threshold, all keys rejected, all keys accepted."""
    e = torch.eye(4)
    q = e[:1].expand(1, 1, 1, 4).contiguous()
    half = torch.tensor([0.5, math.sqrt(3) / 2, 0, 0])
    at_threshold = torch.stack((half, -half, e[1]))[None, None]
    v = torch.ones(1, 1, 3, 8)
    wide = {"window": INF, "acceptance": 0.5}
    assert (attend("screening", q, at_threshold, v, scalars=wide, backend="screening_cpu") == 0).all()
    same = e[:1].expand(1, 1, 300, 4).contiguous()
    values = torch.randn(1, 1, 300, 8)
    fast, dense = (
        attend("screening", same, same, values, scalars=wide, backend=name) for name in ("screening_cpu", "dense")
    )
    assert dense.count_nonzero() == dense.numel()
    torch.testing.assert_close(fast, dense, rtol=1e-5, atol=1e-6)


def test_zero_vectors() -> None:
    tensors = screening_inputs(20, 20, window=[9.0, INF])
    for name in "qkv":
        tensors[name][:, :, 3] = 0
    fast = output_and_gradients(SCREENING, tensors, torch.float32, backend="screening_cpu")
    assert all(value.isfinite().all() for value in fast.values())
    agrees(tensors)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["avx512", "avx2", "plain"])
def test_every_instruction_set(isa: str) -> None:
    """In a separate process, because the variant is chosen when the library loads."""
    if isa not in library.instruction_sets():
        pytest.skip(f"THIS MACHINE CANNOT RUN {isa}; it runs {', '.join(library.instruction_sets())}")
    only = "lengths_and_windows and (15 or 65) or half or acceptance or edges or grouped or runs_on"
    outcome = run_pytest(__file__, "-k", only, KEYSIFT_ISA=isa)
    assert outcome.code == 0, outcome.output[-2000:]


def test_runs_on_the_chosen_instruction_set() -> None:
    chosen = os.environ.get("KEYSIFT_ISA")
    assert library.instruction_set() == chosen if chosen else library.instruction_set() in library.instruction_sets()


def test_operator_passes_opcheck() -> None:
    tensors = {name: value.float() for name, value in screening_inputs(20, 20, window=[9.0, 30.0]).items()}
    for tensor in tensors.values():
        tensor.requires_grad_()
    arguments = tuple(tensors[n] for n in ("q", "k", "v", "window", "window", "acceptance"))
    for segments in (None, Positions.packed([[7, 13], [4]], 20).segments):
        inputs = (*arguments, segments, 0, 0, 256.0)
        torch.library.opcheck(torch.ops.keysift.screening.default, inputs, rtol=1e-4, atol=1e-5)


def test_compiles_forward_and_backward() -> None:
    tensors = {
        name: value.float().requires_grad_() for name, value in screening_inputs(20, 20, window=[9.0, 30.0]).items()
    }

    def loss(q: Tensor, k: Tensor, v: Tensor, window: Tensor, acceptance: Tensor) -> Tensor:
        return attend("screening", q, k, v, scalars={"window": window, "acceptance": acceptance}).square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    inputs = list(tensors.values())
    for actual, expected in zip(
        torch.autograd.grad(compiled(*inputs), inputs), torch.autograd.grad(loss(*inputs), inputs), strict=True
    ):
        torch.testing.assert_close(actual, expected)


def test_is_chosen_or_gives_a_reason() -> None:
    q = torch.randn(1, 2, 8, 4)
    assert explain("screening", q, q, q).backend == "screening_cpu"
    keep = torch.ones(8, dtype=torch.bool)
    reasons = {
        "it never forms the weights": explain("screening", q, q, q, return_weights=True),
        "it does not support a keep mask or a bias": explain("screening", q, q, q, keep=keep),
        "torch.float64 is not supported": explain("screening", *(q.double(),) * 3),
        "it computes screening, not softmax": explain("softmax", q, q, q),
        "it computes screening, not screening+value_gate": explain("screening+value_gate", q, q, q),
        "it needs consecutive positions or segments, not explicit positions": explain(
            "screening", q, q, q, positions=Positions.explicit(torch.arange(8), torch.arange(8))
        ),
        "queries and keys are more than 6e+17 positions apart": explain(
            "screening", q, q, q, positions=replace(Positions.counted(8), first=2**62)
        ),
    }
    for reason, choice in reasons.items():
        assert choice.declined["screening_cpu"] == reason
    with refuses("it does not support a keep mask or a bias"):
        attend("screening", q, q, q, keep=torch.ones(8, dtype=torch.bool), backend="screening_cpu")
