"""The sticks_cpu backend agrees with the definition, gradients included, for every kind of positions."""

import ctypes
from functools import partial

import pytest
import torch
from torch import Tensor

from keysift.kernels.attend import attend, explain, force_backend
from keysift.kernels.cpu import library
from keysift.kernels.cpu import sticks as sticks_cpu
from keysift.kernels.positions import Positions
from keysift.kernels.weigh import weigh
from keysift.mechanisms import MECHANISMS, find
from keysift.mechanisms.rules import StickBreaking
from keysift.mechanisms.spec import Mechanism
from keysift.mechanisms.stick_breaking import variant
from keysift.models.architecture import TransformerArch
from keysift.models.registry import build, configure
from keysift.verify.agreement import check_agreement, draw_inputs
from keysift.verify.cache_equality import check_cache
from tests.kernels import checks
from tests.kernels.checks import check_compiles, largest_saved
from tests.machine import needs_kernel
from tests.refusals import refuses
from tests.representatives import slow_unless_representative

pytestmark = needs_kernel
FAMILY = [m for m in MECHANISMS if isinstance(m.rule, StickBreaking)]
VARIANTS = [*FAMILY, variant(rest="own", own_key=True), variant(rest="learned", own_key=True)]
every = pytest.mark.parametrize("mechanism", slow_unless_representative(VARIANTS))
agrees = partial(checks.agrees, "sticks_cpu")


@every
def test_lengths_and_positions(mechanism: Mechanism) -> None:
    for t, s in ((2, 2), (1, 130), (40, 33), (65, 65), (150, 190)):
        agrees(mechanism, t, s)
    agrees(mechanism, 90, 90, positions=Positions.packed([[3, 80, 7], [60]], 90))
    agrees(mechanism, 20, 20, positions=Positions.padded([20, 3], 20))
    cached = Positions.padded([1, 0], 4, start=[11, 26]).with_cached_keys([0, 0], [14, 30], 30)
    agrees(mechanism, 4, 30, positions=cached)
    agrees(mechanism, 20, 60, window=25)
    if mechanism.name == "stick_breaking_rest":  # with the own key in a window of 1, every gradient is zero
        agrees(mechanism, 20, 20, window=1)
        agrees(mechanism, 20, 20, window=1, positions=Positions.packed([[3, 17], [12]], 20))


@pytest.mark.parametrize("level", [-8.0, -3.0, 2.0, 20.0])
def test_shares_of_every_size(level: float) -> None:
    """Tiny shares of many keys lose no digits, and large ones leave nothing without an overflow."""
    mechanism = find("stick_breaking_rest")
    draws = [draw_inputs(mechanism, 300, 300, seed=seed) for seed in range(2)]
    for tensors in draws:
        tensors["q"][..., 0], tensors["k"][..., 0] = 2.0, level  # the scale is 1/2
    check_agreement(mechanism, *draws, backend="sticks_cpu")


@pytest.mark.parametrize("backend", ["sticks_cpu", "by_rows", "dense"])
def test_the_rest_is_not_a_difference(backend: str) -> None:
    """One minus the sum of the weights would be rounded to a multiple of 6e-8: here it is 1e-9."""
    v = torch.zeros(1, 1, 80, 1)
    v[:, :, -1] = 1.0
    q, k = torch.ones(1, 1, 80, 1), torch.full((1, 1, 80, 1), 10.0)
    k[:, :, 1:] = -30.0
    k[:, :, 0] = 20.7
    out = attend("stick_breaking_rest", q, k, v, scale=1.0, backend=backend)
    torch.testing.assert_close(out[0, 0, -1, 0], torch.tensor(-20.7).exp(), rtol=1e-5, atol=0)


def test_keys_that_cannot_be_reached_are_not_read() -> None:
    """Shares of a half leave nothing after 127 keys; older ones have no weight and no gradient."""
    q = torch.zeros(1, 1, 640, 4, requires_grad=True)
    k, v = torch.randn(1, 1, 640, 4), torch.randn(1, 1, 640, 4).requires_grad_()
    inputs = sticks_cpu.Inputs(q.detach(), k, v.detach(), None, 0, 0, 1.0)
    *_, first_key = sticks_cpu._forward(inputs)
    assert first_key[0, 0, -1] == 640 - 64 - 128
    (dv,) = torch.autograd.grad(attend("stick_breaking", q, k, v)[:, :, 600:].sum(), v)
    assert bool((dv[:, :, :440] == 0).all())
    assert bool((dv[:, :, 500:600] > 0).all())


def test_an_older_key_changes_no_newer_weight() -> None:
    x = torch.tensor([2.0, 1.0, 0.5, -1.0], dtype=torch.float64)
    assert torch.equal(weigh("stick_breaking", x)[1:], weigh("stick_breaking", x[1:]))
    reverse = weigh("stick_breaking", x, distance=[1, 2, 3, 4])
    assert reverse.tolist() == pytest.approx([0.880797, 0.087144, 0.019955, 0.003255], abs=6e-7)


def test_explicit_positions_decide_the_order() -> None:
    q, k, v = (torch.randn(1, 1, 12, 4, dtype=torch.float64) for _ in range(3))
    at, order = torch.arange(12), torch.randperm(12)
    expected = attend("stick_breaking", q, k, v)
    actual = attend("stick_breaking", q, k[:, :, order], v[:, :, order], positions=Positions.explicit(at, at[order]))
    torch.testing.assert_close(actual, expected)


def test_groups_of_query_heads_are_contiguous() -> None:
    q, k, v = torch.randn(1, 4, 40, 4), torch.randn(1, 2, 40, 4), torch.randn(1, 2, 40, 4)
    expected = attend("stick_breaking", q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))
    torch.testing.assert_close(attend("stick_breaking", q, k, v), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    """Sums of logarithms are not rounded to the dtype of the inputs."""
    mechanism = find("stick_breaking")
    check_agreement(mechanism, draw_inputs(mechanism, 200, 200), backend="sticks_cpu", dtype=dtype)


def test_results_do_not_depend_on_threads() -> None:
    leaves = [torch.randn(1, 3, 700, 8).requires_grad_() for _ in range(3)]
    actual: list[tuple[Tensor, ...]] = []
    before = torch.get_num_threads()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        out = attend("stick_breaking", *leaves, backend="sticks_cpu")
        actual.append((out, *torch.autograd.grad(out.sin().sum(), leaves)))
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*actual, strict=True))


def test_is_chosen_or_gives_a_reason() -> None:
    q = torch.randn(1, 1, 20, 4)
    assert explain("stick_breaking", q, q, q).backend == "sticks_cpu"
    one = explain("stick_breaking", q[:, :, :1], q, q)
    assert one.declined["sticks_cpu"] == "fewer than 16 queries do not fill a block"
    assert explain("softmax", q.double(), q.double(), q.double(), causal=False).backend == "sdpa"
    with refuses("it does not implement softmax"):
        explain("softmax", q, q, q, backend="sticks_cpu")
    kept = explain("stick_breaking", q, q, q, window=3, kept=2)
    assert kept.declined["sticks_cpu"] == "it does not support keys that are kept beside a window"


@pytest.mark.parametrize("name", ["stick_breaking", "stick_breaking_rest"])
def test_caches(name: str) -> None:
    """With a cache, in calls of several lengths and token by token, the logits equal those of one forward pass."""
    arch = TransformerArch(depth=2, heads=2, width=16, mechanism=name, position="none")
    model = build(configure(arch, vocab_size=11, context=64), torch.Generator().manual_seed(0)).eval()
    check_cache(model, (70, 3, 1, 1, 20))
    with force_backend("sticks_cpu"):
        check_cache(model, (70, 3, 1, 1))


def test_no_saved_tensor_grows_with_queries_times_keys() -> None:
    q = torch.randn(1, 1, 640, 4, requires_grad=True)
    assert largest_saved(lambda: attend("stick_breaking", q, q, q, backend="sticks_cpu")) <= 640 * 4


@pytest.mark.slow
def test_operators_pass_opcheck_and_compile() -> None:
    q, k, v = (torch.randn(1, 2, 6, 4, requires_grad=True) for _ in range(3))
    torch.library.opcheck(sticks_cpu._sticks, (q, k, v, None, 0, 0, 0.5))
    torch.library.opcheck(sticks_cpu._sticks, (q, k, v, torch.tensor([[0, 1, 3, 1, 3, 0]]), 0, 2, 0.5))
    check_compiles("stick_breaking_rest", "sticks_cpu")


def test_the_library_refuses_invalid_problems() -> None:
    x = torch.zeros(1, 1, 2, 4)
    with refuses("rejected the call: batch, queries, keys and window must be at least 0"):
        sticks_cpu._forward(sticks_cpu.Inputs(x, x, x, None, 0, -1, 1.0))
    problem = sticks_cpu._problem(sticks_cpu.Inputs(x, x, x, None, 0, 0, 1.0))
    assert library.load().keysift_sticks_backward(ctypes.byref(problem), None, None, None, None, None) != 0
    assert b"must not be NULL" in library.load().keysift_last_error()
