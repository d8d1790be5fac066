"""Packed documents and padding inside the compiled kernel: each document is computed as if it stood alone."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from keysift.evaluate.agreement import no_worse_than_plain
from keysift.kernels.attend import attend, explain
from keysift.kernels.positions import Positions
from keysift.mechanisms.screening import SCREENING
from tests.kernels.test_screening_cpu import INF, _poisoned, given
from tests.machine import needs_kernel
from tests.refusals import refuses

pytestmark = needs_kernel
poisoned = _poisoned  # unwritten rows of outputs and gradients are NaN here too

# Two rows each: a block, one less, one more; single tokens; documents longer than the kernel's slab; padding after.
PACKED = {
    "blocks": [[1, 63, 64, 65], [193]],
    "single": [[1] * 5, [2, 1, 2]],
    "uneven": [[7, 100, 30], [137]],
    "padding": [[40, 20], [3]],
    "a row of padding": [[], [50]],
}


def packed(name: str) -> Positions:
    rows = PACKED[name]
    return Positions.packed(rows, max(map(sum, rows)) + 3 * (name != "blocks"))


def run(tensors: dict[str, Tensor], **options: Any) -> dict[str, Tensor]:
    """Output and every gradient in fp32."""
    cast = {name: value.float().requires_grad_() for name, value in tensors.items()}
    scalars = {name: value for name, value in cast.items() if name not in "qkv"}
    out = attend(SCREENING, cast["q"], cast["k"], cast["v"], scalars=scalars, backend="screening_cpu", **options)
    grads = torch.autograd.grad(out.square().sum(), list(cast.values()))
    return {"out": out.detach(), **dict(zip(cast, grads, strict=True))}


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("window", [[0.5, 5.5], [70.0, INF]], ids=str)
def test_packed_agrees_with_the_definition(name: str, window: list[float]) -> None:
    positions = packed(name)
    draws = [given(positions.queries, positions.queries, window=window, seed=seed) for seed in range(2)]
    fast = no_worse_than_plain(SCREENING, *draws, backend="screening_cpu", positions=positions)
    assert fast["output"].count_nonzero() > 0


@pytest.mark.parametrize("name", PACKED)
def test_packed_is_each_alone(name: str) -> None:
    """To the bit, but for the scalars' gradients, which are summed over all documents; and nothing at padding."""
    positions = packed(name)
    tensors = given(positions.queries, positions.queries, window=[9.0, INF])
    whole = run(tensors, positions=positions)
    assert positions.pieces is not None
    sums = {"window": torch.zeros(2), "acceptance": torch.zeros(2)}
    covered = torch.zeros(2, positions.queries, dtype=torch.bool)
    for row, first, count, *_ in positions.pieces.tolist():
        part = (slice(row, row + 1), slice(None), slice(first, first + count))
        covered[row, first : first + count] = True
        alone = run({n: x[part] if n in "qkv" else x for n, x in tensors.items()})
        for which in ("out", "q", "k", "v"):
            assert torch.equal(whole[which][part], alone[which]), which
        for which, total in sums.items():
            total += alone[which]
    for which, total in sums.items():
        torch.testing.assert_close(whole[which], total, rtol=1e-4, atol=1e-4)
    for which in ("out", "q", "k", "v"):
        assert (whole[which].transpose(1, 2)[~covered] == 0).all(), f"{which} of padding"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_packed_in_half_precision(dtype: torch.dtype) -> None:
    positions = packed("uneven")
    tensors = given(positions.queries, positions.queries, window=[9.0, INF], groups=1)
    no_worse_than_plain(SCREENING, tensors, backend="screening_cpu", dtype=dtype, positions=positions)


@pytest.mark.parametrize("padding", [[0, 30], [69, 70], [70, 70], [5, 0]], ids=str)
def test_left_padding(padding: list[int]) -> None:
    positions = Positions.padded(padding, 70, start=[3, 1000])
    no_worse_than_plain(SCREENING, given(70, 70, window=[9.0, INF]), backend="screening_cpu", positions=positions)


def test_rows_of_a_cache() -> None:
    """Rows of 90 and 20 tokens in a ring of 64 slots, of which the last 10 and 4 are new."""
    tokens = Positions.padded([0, 6], 10, start=[80, 16])
    positions = tokens.seeing([26, 0], [64, 20], 64)
    no_worse_than_plain(SCREENING, given(10, 64, window=[9.0, INF]), backend="screening_cpu", positions=positions)


def test_documents_larger_than_a_slab() -> None:
    """Keys of one document are shared out to several tasks; the others are not touched."""
    positions = Positions.packed([[700, 300], [1000]])
    no_worse_than_plain(SCREENING, given(1000, 1000, window=[30.0, INF]), backend="screening_cpu", positions=positions)


def test_all_of_them_are_said_to_run_here() -> None:
    q = torch.randn(2, 2, 8, 4)
    cached = Positions.padded([0, 1], 2, start=[6, 3]).seeing([0, 0], [8, 4], 8)
    for queries, positions in (
        (q, Positions.packed([[3, 5], [8]])),
        (q, Positions.padded([2, 0], 8)),
        (q, Positions.masked(torch.arange(8) >= torch.tensor([[2], [0]]))),
        (q[:, :, :2], cached),
        (q[:, :, :1], Positions.counted(1, 8, start=100)),
    ):
        assert explain("screening", queries, q, q, positions=positions).backend == "screening_cpu"
    holes = Positions.masked(torch.tensor([[True, False] * 4, [True] * 8]))
    assert explain("screening", q, q, q, positions=holes).backend == "dense"


def test_compiles_whole_with_documents() -> None:
    positions = packed("uneven")
    tensors = given(positions.queries, positions.queries, window=[9.0, 30.0])
    inputs = [x.float().requires_grad_() for x in tensors.values()]

    def loss(q: Tensor, k: Tensor, v: Tensor, window: Tensor, acceptance: Tensor) -> Tensor:
        scalars = {"window": window, "acceptance": acceptance}
        return attend("screening", q, k, v, scalars=scalars, positions=positions).square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    ours, theirs = (torch.autograd.grad(f(*inputs), inputs) for f in (compiled, loss))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "pieces",
    [[[2, 0, 8, 0, 8, 0]], [[0, 0, 9, 0, 8, 0]], [[0, 0, 5, 0, 5, 0], [0, 4, 4, 5, 3, 0]], [[1, 0, 8, 0, 8, 0]] * 2],
    ids=["row", "length", "overlap", "twice"],
)
def test_wrong_pieces_are_refused_before_anything_is_read(pieces: list[list[int]]) -> None:
    q = torch.randn(2, 2, 8, 4)
    positions = replace(Positions.packed([[8], [8]]), pieces=torch.tensor(pieces))
    with refuses(r"refused the call: piece \d .* is out of range or order"):
        attend("screening", q, q, q, positions=positions)
