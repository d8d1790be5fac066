"""The compiled kernel agrees with the definition in value and every gradient: instruction sets, odd lengths, edges."""

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from keysift.evaluate.agreement import answers, no_worse_than_plain
from keysift.kernels import native, screening_cpu
from keysift.kernels.attend import attend, explain
from keysift.kernels.positions import Positions
from keysift.mechanisms.screening import SCREENING, prepare_unturned
from tests.machine import needs_kernel
from tests.refusals import refuses

INF = math.inf
BLOCK = 64
pytestmark = needs_kernel


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs start as NaN, so an entry the kernel leaves unwritten cannot pass."""
    empty = torch.empty

    def poisoned(*shape: object, **options: object) -> Tensor:
        made: Tensor = empty(*shape, **options)  # type: ignore[call-overload]
        return made.fill_(math.nan) if made.dtype.is_floating_point else made

    monkeypatch.setattr(screening_cpu.torch, "empty", poisoned)


@pytest.fixture(params=["torch's threads", "own threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    library = native.library()
    if request.param == "own threads":
        library.keysift_set_threads(None, None, 3)
    yield
    native._share_threads(library)


def given(
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
    """Around one direction, so that many keys pass: zeros agree with everything."""
    generator = torch.Generator().manual_seed(t * 1000 + s + 7 * seed)
    heads = len(window)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    centre = 1.2 * draw(1, 1, 1, width)
    return {
        "q": centre + draw(2, heads, t, width),
        "k": centre + draw(2, groups or heads, s, width),
        "v": draw(2, groups or heads, s, values),
        "window": torch.tensor(window, dtype=torch.float64),
        "acceptance": torch.full((heads,), accept, dtype=torch.float64),
    }


def agrees(*draws: dict[str, Tensor], **options: Any) -> dict[str, Tensor]:
    fast = no_worse_than_plain(SCREENING, *draws, backend="screening_cpu", **options)
    assert fast["output"].count_nonzero() > 0.3 * fast["output"].numel(), "nothing was open"
    return fast


@pytest.mark.parametrize("length", [1, 15, 63, BLOCK, BLOCK + 1, 200])
@pytest.mark.parametrize(
    "window", [[0.3, 0.5], [0.7, 1.0], [2.0, 2.5], [17.0, 100.25], [256.0, 257.0], [INF, 40.0]], ids=str
)
def test_lengths_and_windows(length: int, window: list[float], threads: None) -> None:
    agrees(*(given(length, length, window=window, seed=seed) for seed in range(3)))


@pytest.mark.slow
@pytest.mark.parametrize("window", [[2.0, 257.0], [1000.25, INF]], ids=str)
def test_a_thousand(window: list[float]) -> None:
    agrees(given(1000, 1000, window=window))


@pytest.mark.parametrize("accept", [0.01, 0.1, 0.5, 0.99, 1.0])
def test_acceptance(accept: float) -> None:
    draws = [given(70, 70, window=[9.0, INF], accept=accept, seed=seed) for seed in range(4)]
    for tensors in draws:  # at a narrow acceptance only near copies pass: give every query some
        tensors["k"] = tensors["q"] + 0.02 * tensors["k"]
    agrees(*draws)


@pytest.mark.parametrize("width", [2, 3, 16, 32, 40])
@pytest.mark.parametrize("values", [1, 5, 64, 100, 128])
def test_widths(width: int, values: int) -> None:
    agrees(*(given(37, 37, window=[5.5, INF], width=width, values=values, seed=seed) for seed in range(3)))


@pytest.mark.parametrize(("t", "s"), [(1, 300), (5, 64), (64, 65), (33, 20), (7, 1)])
def test_fewer_or_more_queries_than_keys(t: int, s: int) -> None:
    fast = no_worse_than_plain(SCREENING, given(t, s, window=[9.0, INF]), backend="screening_cpu")
    assert fast["output"].count_nonzero() > 0


@pytest.mark.parametrize("start", [0, 255, 4095, 131_071, 10_000_000])
def test_positions_far_out(start: int) -> None:
    agrees(given(20, 40, window=[3.5, 70.0]), positions=Positions.counted(20, 40, start=start))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("keys", [1, 33, BLOCK, 91])
@pytest.mark.parametrize("gap", [0, 1, 19, 20, 33, BLOCK, 200])
def test_queries_far_after_the_last_key(gap: int, keys: int, dtype: torch.dtype) -> None:
    """Some keys, or all of them, lie behind the windows: nothing of them is read, and nothing else either."""
    leaves = [torch.randn(1, 2, n, 8).to(dtype).requires_grad_() for n in (7, keys, keys)]
    options: Any = {
        "scalars": {"window": torch.tensor([3.5, 20.0]), "acceptance": 0.9},
        "positions": Positions(queries=7, keys=keys, first=keys + gap, key_first=0),
    }
    found = {}
    for backend in ("screening_cpu", "dense"):
        out = attend("screening", *leaves, backend=backend, **options)
        found[backend] = (out, *torch.autograd.grad(out.sum(), leaves))
    torch.testing.assert_close(*found.values())
    assert bool(found["dense"][0].any()) == (gap < 19) or keys == 1


def test_every_batch_row_at_its_own_position() -> None:
    """As in a cache of rows of 40 and 33 tokens, of which the last 20 are new."""
    tokens = Positions.padded([0, 0], 20, start=[30, 1000])
    agrees(given(20, 40, window=[3.5, 70.0]), positions=tokens.seeing([10, 987], [40, 33], 40))


def test_grouped_heads() -> None:
    agrees(given(50, 50, window=[3.0, 9.0, 20.0, INF], groups=2))


def test_window_expansion() -> None:
    tensors = given(90, 90, window=[5.0, 300.0])
    tensors["reach"] = torch.tensor([5.0, INF], dtype=torch.float64)
    agrees(tensors)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_half_precision(dtype: torch.dtype) -> None:
    agrees(given(70, 70, window=[9.0, INF]), dtype=dtype)


def test_ablations() -> None:
    unturned = replace(SCREENING, name="unturned", prepare=(prepare_unturned,))
    for mechanism in (unturned, replace(SCREENING, name="plain", finish=()), replace(unturned, finish=())):
        tensors = given(70, 70, window=[9.0, INF])
        if mechanism.prepare == (prepare_unturned,):
            tensors["reach"] = tensors["window"]
        no_worse_than_plain(mechanism, tensors, backend="screening_cpu")


def test_strided_inputs() -> None:
    tensors = given(40, 40, window=[9.0, INF])
    q, k, v = (tensors[name].float() for name in "qkv")
    scalars = {"window": tensors["window"].float(), "acceptance": 0.9}
    # The layout a projection gives: B T H K seen as B H T K.
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    backwards = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v)]
    expected = attend("screening", q, k, v, scalars=scalars, backend="screening_cpu")
    for views in (strided, backwards):
        assert torch.equal(attend("screening", *views, scalars=scalars, backend="screening_cpu"), expected)


def test_edges_are_exact() -> None:
    """A key exactly at the threshold, everything refused, everything accepted."""
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
    tensors = given(20, 20, window=[9.0, INF])
    for name in "qkv":
        tensors[name][:, :, 3] = 0
    fast = answers(SCREENING, tensors, torch.float32, backend="screening_cpu")
    assert all(value.isfinite().all() for value in fast.values())
    agrees(tensors)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["avx512", "avx2", "plain"])
def test_every_instruction_set(isa: str) -> None:
    """In a process of its own: the variant is chosen when the library loads."""
    if isa not in native.instruction_sets():
        pytest.skip(f"THIS MACHINE CANNOT RUN {isa}; it runs {', '.join(native.instruction_sets())}")
    environment = {**os.environ, "KEYSIFT_ISA": isa}
    probe = "from keysift.kernels import native; print(native.instruction_set())"
    chosen = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True, env=environment)
    assert chosen.stdout.strip() == isa
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    only = ["-k", "lengths_and_windows and (15 or 65) or half or acceptance or edges or grouped"]
    done = subprocess.run([*command, *only], check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-2000:]


def test_torch_knows_the_operator() -> None:
    tensors = {name: value.float() for name, value in given(20, 20, window=[9.0, 30.0]).items()}
    for tensor in tensors.values():
        tensor.requires_grad_()
    six = tuple(tensors[n] for n in ("q", "k", "v", "window", "window", "acceptance"))
    for pieces in (None, Positions.packed([[7, 13], [4]], 20).pieces):
        torch.library.opcheck(torch.ops.keysift.screening.default, (*six, pieces, 0, 0), rtol=1e-4, atol=1e-5)


def test_compiles_whole_forward_and_backward() -> None:
    tensors = {name: value.float().requires_grad_() for name, value in given(20, 20, window=[9.0, 30.0]).items()}

    def loss(q: Tensor, k: Tensor, v: Tensor, window: Tensor, acceptance: Tensor) -> Tensor:
        return attend("screening", q, k, v, scalars={"window": window, "acceptance": acceptance}).square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    inputs = list(tensors.values())
    for got, wanted in zip(
        torch.autograd.grad(compiled(*inputs), inputs), torch.autograd.grad(loss(*inputs), inputs), strict=True
    ):
        torch.testing.assert_close(got, wanted)


def test_is_chosen_and_says_why_not() -> None:
    q = torch.randn(1, 2, 8, 4)
    assert explain("screening", q, q, q).backend == "screening_cpu"
    reasons = {
        "it never forms the weights": explain("screening", q, q, q, return_weights=True),
        "a keep mask or a bias was given": explain("screening", q, q, q, keep=torch.ones(8, dtype=torch.bool)),
        "torch.float64 is not supported": explain("screening", *(q.double(),) * 3),
        "it computes screening, not softmax": explain("softmax", q, q, q),
        "it computes screening, not screening+value_gate": explain("screening+value_gate", q, q, q),
        "positions were given one by one, not as runs that count up": explain(
            "screening", q, q, q, positions=Positions.explicit(torch.arange(8), torch.arange(8))
        ),
        "queries and keys are more than 6e+17 positions apart": explain(
            "screening", q, q, q, positions=replace(Positions.counted(8), first=2**62)
        ),
    }
    for reason, choice in reasons.items():
        assert choice.declined["screening_cpu"] == reason
    with refuses("a keep mask or a bias was given"):
        attend("screening", q, q, q, keep=torch.ones(8, dtype=torch.bool), backend="screening_cpu")
