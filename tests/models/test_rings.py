"""A decoded token reads the cache where it lies: the same numbers as from a copy in order, and no copy is made."""

import ctypes
from collections.abc import Iterator
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from keysift.kernels import native
from keysift.kernels.attend import only
from keysift.models.language import LanguageModel
from keysift.nn import read
from tests.machine import needs_kernel
from tests.models.checks import TINY, opened, tokens_for
from tests.refusals import refuses

pytestmark = needs_kernel
LONG = 1000


@pytest.fixture
def model() -> LanguageModel:
    return opened(TINY, windows=(2.5, 70.0, 1e6)).eval()


def decoded(model: LanguageModel, tokens_BT: Tensor, keep_BT: Tensor | None = None) -> Tensor:
    """Logits of every token, one at a time."""
    cache = model.cache(len(tokens_BT))
    with torch.no_grad():
        steps = [
            model(tokens_BT[:, t : t + 1], keep=None if keep_BT is None else keep_BT[:, t : t + 1], cache=cache)
            for t in range(tokens_BT.shape[1])
        ]
    return torch.cat(steps, dim=1)


@pytest.fixture
def in_order() -> Iterator[None]:
    """Every ring is copied in the order of the text, as for a backend that cannot read rings."""
    with mock.patch.object(read, "reads_rings", return_value=False):
        yield


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, *(pytest.param(one, marks=pytest.mark.slow) for one in (torch.bfloat16, torch.float16))],
    ids=str,
)
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("widest", [1e6, 90.0])
def test_the_same_bits_as_a_copy(dtype: torch.dtype, ragged: bool, widest: float) -> None:
    """150 tokens go round the shorter rings, so that blocks of keys lie in two parts, or round all of them."""
    model = opened(TINY, windows=(2.5, 70.0, widest)).eval().to(dtype)
    tokens = tokens_for(model, 3, 150)
    keep = torch.rand(3, 150, generator=torch.Generator().manual_seed(1)) < 0.8 if ragged else None
    found = decoded(model, tokens, keep)
    with mock.patch.object(read, "reads_rings", return_value=False):
        copied = decoded(model, tokens, keep)
    real = torch.ones(3, 150, dtype=torch.bool) if keep is None else keep
    torch.testing.assert_close(found[real], copied[real], rtol=0, atol=0)


class Largest(TorchDispatchMode):
    """The most numbers any operation gave in memory of its own."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = func(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in args if isinstance(x, Tensor)}
        if isinstance(made, Tensor) and made.untyped_storage().data_ptr() not in given:
            self.numel = max(self.numel, made.numel())
        return made


def largest_of_a_token(model: LanguageModel) -> int:
    cache = model.cache(1)
    tokens = tokens_for(model, 1, LONG + 2)
    with torch.no_grad():
        for piece in (tokens[:, :LONG], tokens[:, LONG : LONG + 1]):  # the rings grow with the first of two more tokens
            model(piece, cache=cache)
        with Largest() as seen:
            model(tokens[:, LONG + 1 :], cache=cache)
    return seen.numel


def test_nothing_of_the_past_is_copied(model: LanguageModel) -> None:
    assert largest_of_a_token(model) < LONG


@pytest.mark.usefixtures("in_order")
def test_the_measure_sees_a_copy(model: LanguageModel) -> None:
    assert largest_of_a_token(model) > LONG


def test_another_backend_is_obeyed(model: LanguageModel) -> None:
    tokens = tokens_for(model, 1, 20)
    with mock.patch.object(read, "attend_rings", side_effect=AssertionError), only("dense"):
        decoded(model, tokens)


@pytest.mark.parametrize("first", [True, False], ids=["bf16, then fp32", "fp32, then bf16"])
def test_a_cache_of_another_type_is_refused(model: LanguageModel, first: bool) -> None:
    """Read where it lies, it would be read past its end."""
    tokens, cache = tokens_for(model, 1, 8), model.cache(1)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16, enabled=first):
            model(tokens[:, :5], cache=cache)
        with torch.autocast("cpu", torch.bfloat16, enabled=not first), refuses("must share one floating-point type"):
            model(tokens[:, 5:6], cache=cache)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:DeprecationWarning")  # torch's own
def test_forward_mode_derivatives_are_kept(model: LanguageModel) -> None:
    tokens = tokens_for(model, 1, 8)
    table = dict(model.named_parameters())["embedding.weight"].detach()
    moved = torch.randn(table.shape, generator=torch.Generator().manual_seed(0))

    def tangent() -> Tensor:
        cache = model.cache(1)
        with torch.no_grad():
            model(tokens[:, :7], cache=cache)
            with forward_ad.dual_level():
                dual = {"embedding.weight": forward_ad.make_dual(table, moved)}
                logits = torch.func.functional_call(model, dual, (tokens[:, 7:],), {"cache": cache})
                found: Tensor = forward_ad.unpack_dual(logits).tangent
        return found

    found = tangent()
    with mock.patch.object(read, "reads_rings", return_value=False):
        torch.testing.assert_close(found, tangent(), rtol=0, atol=0)


def test_gradients_and_wrong_rings_are_refused() -> None:
    library, status = native.library(), 1
    one, ring, first = torch.ones(1, 1, 2, 4), torch.tensor([[0, 2]]), torch.zeros(1, dtype=torch.int64)
    out = torch.zeros_like(one)

    def forward(ring: Tensor, first: Tensor | None, run: str = "keysift_forward") -> str:
        view, scalar = native.View.of(one), torch.ones(1)
        problem = native.Problem(
            *(1, 1, 1, 2, 2, 4, 4, 0, 0, view, view, view),
            *(ring.data_ptr(), None if first is None else first.data_ptr(), None, -1, 0),
            *(scalar.data_ptr(), None, scalar.data_ptr(), 256.0),
        )
        rest = (None, None) if run == "keysift_forward" else (None, None, None, None)
        answer = getattr(library, run)(ctypes.byref(problem), ctypes.byref(native.View.of(out)), *rest)
        return library.keysift_last_error().decode() if answer == status else ""

    assert forward(ring, first) == ""
    assert "ring_first must not be NULL" in forward(ring, None)
    assert "ring 0: 0 rows from row 0 on" in forward(torch.tensor([[0, 0]]), first)
    assert "ring 0: 2 rows from row -1 on" in forward(torch.tensor([[-1, 2]]), first)
    assert "ring 0: 2 rows from row 2305843009213693952 on" in forward(torch.tensor([[1 << 61, 2]]), first)
    assert "ring_first[0] is -1" in forward(ring, first - 1)
    assert "no gradient flows into a cache" in forward(ring, first, "keysift_backward")
