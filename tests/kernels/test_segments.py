"""Packed documents and padding in the compiled kernel: each document is computed as if it were alone."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from keysift.kernels.attend import attend, explain
from keysift.kernels.positions import Positions
from keysift.mechanisms.screening import SCREENING
from keysift.verify.agreement import check_agreement
from tests.kernels.test_screening_cpu import INF, _poisoned, screening_inputs
from tests.machine import needs_kernel
from tests.refusals import refuses

pytestmark = needs_kernel
poisoned = _poisoned  # unwritten rows of outputs and gradients are NaN here too

# Two rows each: a block of keys, one less, one more; single tokens; uneven lengths; padding at the end.
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
    draws = [screening_inputs(positions.queries, positions.queries, window=window, seed=seed) for seed in range(2)]
    fast = check_agreement(SCREENING, *draws, backend="screening_cpu", positions=positions)
    assert fast["output"].count_nonzero() > 0


@pytest.mark.parametrize("name", PACKED)
def test_packed_equals_each_document_alone(name: str) -> None:
    """Bitwise, except for gradients of scalars, which are sums over documents. Padding gets zeros."""
    positions = packed(name)
    tensors = screening_inputs(positions.queries, positions.queries, window=[9.0, INF])
    packed_result = run(tensors, positions=positions)
    assert positions.segments is not None
    sums = {"window": torch.zeros(2), "acceptance": torch.zeros(2)}
    covered = torch.zeros(2, positions.queries, dtype=torch.bool)
    for row, first, count, *_ in positions.segments.tolist():
        document = (slice(row, row + 1), slice(None), slice(first, first + count))
        covered[row, first : first + count] = True
        alone = run({n: x[document] if n in "qkv" else x for n, x in tensors.items()})
        for which in ("out", "q", "k", "v"):
            assert torch.equal(packed_result[which][document], alone[which]), which
        for which, total in sums.items():
            total += alone[which]
    for which, total in sums.items():
        torch.testing.assert_close(packed_result[which], total, rtol=1e-4, atol=1e-4)
    for which in ("out", "q", "k", "v"):
        assert (packed_result[which].transpose(1, 2)[~covered] == 0).all(), f"{which} of padding"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_packed_in_half_precision(dtype: torch.dtype) -> None:
    positions = packed("uneven")
    tensors = screening_inputs(positions.queries, positions.queries, window=[9.0, INF], groups=1)
    check_agreement(SCREENING, tensors, backend="screening_cpu", dtype=dtype, positions=positions)


@pytest.mark.parametrize("padding", [[0, 30], [69, 70], [70, 70], [5, 0]], ids=str)
def test_left_padding(padding: list[int]) -> None:
    positions = Positions.padded(padding, 70, start=[3, 1000])
    check_agreement(
        SCREENING, screening_inputs(70, 70, window=[9.0, INF]), backend="screening_cpu", positions=positions
    )


def test_rows_of_a_cache() -> None:
    """Rows of 90 and 20 tokens in a ring of 64 slots, of which the last 10 and 4 are new."""
    tokens = Positions.padded([0, 6], 10, start=[80, 16])
    positions = tokens.with_cached_keys([26, 0], [64, 20], 64)
    check_agreement(
        SCREENING, screening_inputs(10, 64, window=[9.0, INF]), backend="screening_cpu", positions=positions
    )


def test_documents_larger_than_a_slab() -> None:
    """The keys of a long document are split into several tasks."""
    positions = Positions.packed([[700, 300], [1000]])
    check_agreement(
        SCREENING, screening_inputs(1000, 1000, window=[30.0, INF]), backend="screening_cpu", positions=positions
    )


def test_explain_chooses_the_kernel_for_segments() -> None:
    q = torch.randn(2, 2, 8, 4)
    cached = Positions.padded([0, 1], 2, start=[6, 3]).with_cached_keys([0, 0], [8, 4], 8)
    for queries, positions in (
        (q, Positions.packed([[3, 5], [8]])),
        (q, Positions.padded([2, 0], 8)),
        (q, Positions.masked(torch.arange(8) >= torch.tensor([[2], [0]]))),
        (q[:, :, :2], cached),
        (q[:, :, :1], Positions.counted(1, 8, start=100)),
    ):
        assert explain("screening", queries, q, q, positions=positions).backend == "screening_cpu"
    with_gaps = Positions.masked(torch.tensor([[True, False] * 4, [True] * 8]))
    assert explain("screening", q, q, q, positions=with_gaps).backend == "dense"


def test_compiles_with_documents() -> None:
    positions = packed("uneven")
    tensors = screening_inputs(positions.queries, positions.queries, window=[9.0, 30.0])
    inputs = [x.float().requires_grad_() for x in tensors.values()]

    def loss(q: Tensor, k: Tensor, v: Tensor, window: Tensor, acceptance: Tensor) -> Tensor:
        scalars = {"window": window, "acceptance": acceptance}
        return attend("screening", q, k, v, scalars=scalars, positions=positions).square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    compiled_gradients, eager_gradients = (torch.autograd.grad(f(*inputs), inputs) for f in (compiled, loss))
    torch.testing.assert_close(compiled_gradients, eager_gradients)


@pytest.mark.parametrize(
    "segments",
    [[[2, 0, 8, 0, 8, 0]], [[0, 0, 9, 0, 8, 0]], [[0, 0, 5, 0, 5, 0], [0, 4, 4, 5, 3, 0]], [[1, 0, 8, 0, 8, 0]] * 2],
    ids=["row", "length", "overlap", "twice"],
)
def test_invalid_segments_are_refused(segments: list[list[int]]) -> None:
    q = torch.randn(2, 2, 8, 4)
    positions = replace(Positions.packed([[8], [8]]), segments=torch.tensor(segments))
    with refuses(r"rejected the call: segment \d .* is out of range or order"):
        attend("screening", q, q, q, positions=positions)
