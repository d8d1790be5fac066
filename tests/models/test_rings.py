"""Decoding through the modules reads the cache in place: the same values as from a copy in text order, and no copy is
made. The compiled step has its own tests."""

import ctypes
from collections.abc import Iterator
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from keysift.kernels.attend import force_backend
from keysift.kernels.cpu import library
from keysift.models.language_model import LanguageModel
from keysift.nn import cached_attention as read
from keysift.nn.decode_step import through_modules
from tests.machine import needs_kernel
from tests.models.checks import TINY, perturbed_multiscreen, tokens_for
from tests.refusals import refuses

pytestmark = needs_kernel
LONG = 1000


@pytest.fixture
def model() -> LanguageModel:
    return perturbed_multiscreen(TINY, windows=(2.5, 70.0, 1e6)).eval()


def decoded(model: LanguageModel, tokens_BT: Tensor, keep_BT: Tensor | None = None) -> Tensor:
    """Logits of every token, decoded token by token."""
    cache = model.cache(len(tokens_BT))
    with torch.no_grad(), through_modules():
        steps = [
            model(tokens_BT[:, t : t + 1], keep=None if keep_BT is None else keep_BT[:, t : t + 1], cache=cache)
            for t in range(tokens_BT.shape[1])
        ]
    return torch.cat(steps, dim=1)


@pytest.fixture
def in_order() -> Iterator[None]:
    """Copies every ring into text order, as for a backend that cannot read rings."""
    with mock.patch.object(read, "find_cache_reader", return_value=None):
        yield


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in (torch.bfloat16, torch.float16))],
    ids=str,
)
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("widest", [1e6, 90.0])
def test_bit_identical_to_reading_a_copy(dtype: torch.dtype, ragged: bool, widest: float) -> None:
    """150 tokens wrap around some or all of the rings, so that blocks of keys are split in two."""
    model = perturbed_multiscreen(TINY, windows=(2.5, 70.0, widest)).eval().to(dtype)
    tokens = tokens_for(model, 3, 150)
    keep = torch.rand(3, 150, generator=torch.Generator().manual_seed(1)) < 0.8 if ragged else None
    result = decoded(model, tokens, keep)
    with mock.patch.object(read, "find_cache_reader", return_value=None):
        copied = decoded(model, tokens, keep)
    real = torch.ones(3, 150, dtype=torch.bool) if keep is None else keep
    torch.testing.assert_close(result[real], copied[real], rtol=0, atol=0)


class LargestAllocation(TorchDispatchMode):
    """Largest number of elements that any operation allocated."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        inputs = {x.untyped_storage().data_ptr() for x in args if isinstance(x, Tensor)}
        if isinstance(result, Tensor) and result.untyped_storage().data_ptr() not in inputs:
            self.numel = max(self.numel, result.numel())
        return result


def largest_allocation_of_a_step(model: LanguageModel) -> int:
    cache = model.cache(1)
    tokens = tokens_for(model, 1, LONG + 2)
    with torch.no_grad(), through_modules():
        for piece in (tokens[:, :LONG], tokens[:, LONG : LONG + 1]):  # the second call grows the rings
            model(piece, cache=cache)
        with LargestAllocation() as allocations:
            model(tokens[:, LONG + 1 :], cache=cache)
    return allocations.numel


def test_the_cache_is_not_copied(model: LanguageModel) -> None:
    assert largest_allocation_of_a_step(model) < LONG


@pytest.mark.usefixtures("in_order")
def test_allocation_counter_detects_a_copy(model: LanguageModel) -> None:
    assert largest_allocation_of_a_step(model) > LONG


def test_forced_backend_is_used(model: LanguageModel) -> None:
    tokens = tokens_for(model, 1, 20)
    with mock.patch.object(read, "_decode_step", side_effect=AssertionError), force_backend("dense"):
        decoded(model, tokens)


@pytest.mark.parametrize("first", [True, False], ids=["bf16, then fp32", "fp32, then bf16"])
def test_a_cache_of_another_type_is_refused(model: LanguageModel, first: bool) -> None:
    """Reading it in place would read past its end."""
    tokens, cache = tokens_for(model, 1, 8), model.cache(1)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16, enabled=first):
            model(tokens[:, :5], cache=cache)
        held = "and torch.bfloat16, got" if first else "and torch.float32, got"
        with torch.autocast("cpu", torch.bfloat16, enabled=not first), refuses(f"the cache holds k of .* {held}"):
            model(tokens[:, 5:6], cache=cache)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:DeprecationWarning")  # torch's own
def test_forward_mode_derivatives_are_kept(model: LanguageModel) -> None:
    tokens = tokens_for(model, 1, 8)
    table = dict(model.named_parameters())["embedding.weight"].detach()
    direction = torch.randn(table.shape, generator=torch.Generator().manual_seed(0))

    def tangent() -> Tensor:
        cache = model.cache(1)
        with torch.no_grad():
            model(tokens[:, :7], cache=cache)
            with forward_ad.dual_level():
                dual = {"embedding.weight": forward_ad.make_dual(table, direction)}
                logits = torch.func.functional_call(model, dual, (tokens[:, 7:],), {"cache": cache})
                result: Tensor = forward_ad.unpack_dual(logits).tangent
        return result

    result = tangent()
    with mock.patch.object(read, "find_cache_reader", return_value=None):
        torch.testing.assert_close(result, tangent(), rtol=0, atol=0)


def test_gradients_and_wrong_rings_are_refused() -> None:
    loaded, error = library.load(), 1
    tensor, ring, first = torch.ones(1, 1, 2, 4), torch.tensor([[0, 2]]), torch.zeros(1, dtype=torch.int64)
    out = torch.zeros_like(tensor)

    def forward(ring: Tensor, first: Tensor | None, run: str = "keysift_forward") -> str:
        view, scalar = library.View.of(tensor), torch.ones(1)
        problem = library.Problem(
            *(1, 1, 1, 2, 2, 4, 4, 0, 0, view, view, view),
            *(ring.data_ptr(), None if first is None else first.data_ptr(), None, -1, 0),
            *(scalar.data_ptr(), None, scalar.data_ptr(), 256.0),
        )
        outputs = (None, None) if run == "keysift_forward" else (None, None, None, None)
        code = getattr(loaded, run)(ctypes.byref(problem), ctypes.byref(library.View.of(out)), *outputs)
        return loaded.keysift_last_error().decode() if code == error else ""

    assert forward(ring, first) == ""
    assert "ring_first must not be NULL" in forward(ring, None)
    assert "ring 0: 0 rows from row 0 on" in forward(torch.tensor([[0, 0]]), first)
    assert "ring 0: 2 rows from row -1 on" in forward(torch.tensor([[-1, 2]]), first)
    assert "ring 0: 2 rows from row 2305843009213693952 on" in forward(torch.tensor([[1 << 61, 2]]), first)
    assert "ring_first[0] is -1" in forward(ring, first - 1)
    assert "no gradient flows into a cache" in forward(ring, first, "keysift_backward")
