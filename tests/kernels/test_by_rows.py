"""The by_rows backend agrees with the definition, gradients included, for every mechanism."""

import math
import weakref
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from keysift.kernels.attend import attend, explain
from keysift.kernels.eager import rows as by_rows
from keysift.kernels.positions import Positions
from keysift.mechanisms import MECHANISMS, entmax, find
from keysift.mechanisms.spec import Mechanism
from keysift.verify.agreement import draw_inputs
from tests.kernels import checks
from tests.kernels.checks import largest_saved
from tests.refusals import refuses

ALL = [*MECHANISMS, find("softpick+value_gate"), find("sparsemax+output_gate")]
every = pytest.mark.parametrize("mechanism", ALL, ids=lambda mechanism: mechanism.name)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of eight rows, the smallest size."""
    monkeypatch.setattr(by_rows, "PAIRS", 512)


agrees = partial(checks.agrees, "by_rows")


@every
@pytest.mark.parametrize(("t", "s"), [(1, 1), (5, 40), (40, 33), (63, 63)])
def test_lengths_and_caches(mechanism: Mechanism, t: int, s: int) -> None:
    agrees(mechanism, t, s)


@every
def test_positions_masks_and_biases(mechanism: Mechanism) -> None:
    agrees(mechanism, 20, 20, positions=Positions.packed([[3, 9, 8], [20]]))
    keep = torch.rand(2, 1, 20, 40) > 0.3
    keep[:, :, 7] = False
    fast = agrees(mechanism, 20, 40, keep=keep)
    assert (fast["output"][:, :, 7] == 0).all()
    assert (fast["gradient of q"][:, :, 7] == 0).all()
    if mechanism.takes_bias:
        agrees(mechanism, 20, 40, bias=torch.randn(4, 20, 40).masked_fill(torch.rand(4, 20, 40) > 0.8, -math.inf))
    if not mechanism.causal_only:
        agrees(mechanism, 20, 33, causal=False)


ROWS = st.lists(st.floats(-6, 6), min_size=1, max_size=40).map(lambda row: torch.tensor(row, dtype=torch.float64))


@given(ROWS)
def test_newton_agrees_with_sorting(x: Tensor) -> None:
    keep = torch.ones_like(x, dtype=torch.bool)
    x = x - x.max()
    for alpha, solve in ((2.0, entmax.solve_sparsemax), (1.5, entmax.solve_entmax15)):
        order = torch.tensor(alpha, dtype=torch.float64)
        torch.testing.assert_close(by_rows.solve_by_newton(x, keep, order), solve(x, keep, order), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", ["sparsemax", "entmax15", "softpick", "rectified_difference"])
def test_no_saved_tensor_grows_with_queries_times_keys(name: str) -> None:
    mechanism = find(name)
    q, k, v = (torch.randn(1, maps, 640, 4, requires_grad=True) for maps in (mechanism.maps, mechanism.key_maps, 1))
    largest = largest_saved(lambda: attend(mechanism, q, k, v, backend="by_rows"))
    assert largest <= 2 * 640 * 8 * mechanism.maps


@pytest.mark.parametrize("name", ["sparsemax", "rectified_difference"])
def test_backward_allocates_few_tensors_of_key_length(name: str) -> None:
    """Their number does not grow with the number of blocks, 40 here."""
    mechanism = find(name)
    q, k, v = (torch.randn(1, maps, 320, 64, requires_grad=True) for maps in (mechanism.maps, mechanism.key_maps, 1))
    allocated = 0

    class CountAllocations(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal allocated
            out = func(*args, **(kwargs or {}))
            input_storages = {
                x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)
            }
            for x in tree_leaves(out):
                new = isinstance(x, Tensor) and x.untyped_storage().data_ptr() not in input_storages
                allocated += new and x.numel() >= v.numel()
            return out

    out = attend(mechanism, q, k, v, backend="by_rows").sum()
    with CountAllocations():
        out.backward()
    assert allocated < 20


def test_gradients_of_broadcast_biases() -> None:
    """Every block adds to the gradient of a bias that all queries or all keys share."""
    q, k, v = (torch.randn(1, 2, 40, 4, dtype=torch.float64) for _ in range(3))
    for shape in ((2, 40, 40), (1, 1, 40), (2, 40, 1), (1,)):
        actual = []
        for backend in ("by_rows", "dense"):
            bias = torch.linspace(-1, 1, math.prod(shape), dtype=torch.float64).view(shape).requires_grad_()
            out = attend("entmax15", q, k, v, bias=bias, backend=backend)
            actual.append(torch.autograd.grad(out.sin().sum(), bias)[0])
        torch.testing.assert_close(*actual)
        assert shape[-1] == 1 or actual[0].abs().max() > 1e-3


@pytest.mark.parametrize("name", ["sparsemax", "rectified_difference", "ssmax"])
def test_second_derivatives(name: str) -> None:
    mechanism = find(name)
    tensors = {name: value.requires_grad_() for name, value in draw_inputs(mechanism, 20, 20).items()}
    scalars = {name: value for name, value in tensors.items() if name not in "qkv"}
    actual = []
    for backend in ("by_rows", "dense"):
        out = attend(mechanism, tensors["q"], tensors["k"], tensors["v"], scalars=scalars, backend=backend)
        gradients = torch.autograd.grad(out.sin().sum(), list(tensors.values()), create_graph=True)
        actual.append(
            torch.autograd.grad(sum(gradient.square().sum() for gradient in gradients), list(tensors.values()))
        )
    torch.testing.assert_close(*actual)


@pytest.mark.parametrize("name", ["entmax15", "rectified_difference"])
def test_autocast_changes_nothing(name: str) -> None:
    """Autocast affects forward passes only, but the backward pass must recompute the same weights."""
    mechanism = find(name)
    leaves = [x.float().requires_grad_() for x in list(draw_inputs(mechanism, 20, 20).values())[:3]]
    actual = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            out = attend(mechanism, *leaves, backend="by_rows")
            actual.append((out, *torch.autograd.grad(out.sin().sum(), leaves)))
    torch.testing.assert_close(*actual, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:DeprecationWarning")  # torch's own
def test_tangents_are_not_dropped() -> None:
    q = torch.randn(1, 1, 8, 4)
    with torch.autograd.forward_ad.dual_level():
        bias = torch.autograd.forward_ad.make_dual(torch.zeros(8, 8), torch.ones(8, 8))
        with refuses("it has no forward-mode derivative"):
            attend("sparsemax", q, q, q, bias=bias, backend="by_rows")


def test_declines_with_a_reason() -> None:
    q = torch.randn(1, 1, 8, 4)
    with refuses("it never forms all weights at once"):
        attend("softpick", q, q, q, backend="by_rows", return_weights=True)
    small = explain("sparsemax", q.clone().requires_grad_(), q, q)
    assert small.declined["by_rows"] == "the call is too small to be split into blocks"
    long = torch.randn(1, 1, 600, 4)
    assert explain("sparsemax", *(long.double(),) * 3).backend == "by_rows"
    assert explain("softmax", long, long, long).backend == "sdpa"
    keep = torch.ones(600, 600, dtype=torch.bool)
    assert explain("softpick", long, long, long, keep=keep).backend == "by_rows"


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch.compile's own
@pytest.mark.parametrize("name", ["softpick", "sparsemax", "sigmoid_visible"])
@pytest.mark.slow
def test_compiles(name: str) -> None:
    q, k, v = (torch.randn(1, 2, 20, 4) for _ in range(3))
    compiled = torch.compile(
        lambda q, k, v: attend(name, q, k, v, backend="by_rows"), fullgraph=True, backend="eager", dynamic=False
    )
    torch.testing.assert_close(compiled(q, k, v), attend(name, q, k, v), rtol=1e-5, atol=1e-5)


def test_graph_keeps_saved_tensors_only() -> None:
    """So a checkpointed layer can free its queries."""
    q, k, v = (torch.randn(1, 1, 4, 3, requires_grad=True) for _ in range(3))
    queries = q * 2
    reference = weakref.ref(queries)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.shape, torch.zeros):
        out = attend("softmax", queries, k, v, backend="by_rows")
    del queries
    assert reference() is None
    assert out.requires_grad
