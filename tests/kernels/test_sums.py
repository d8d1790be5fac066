"""Running sums in the compiled kernel agree with the definition in value and every gradient, wherever keys stand."""

import ctypes
import math
from functools import partial

import pytest
import torch

from keysift.evaluate.agreement import answers, draw, no_worse_than_plain
from keysift.evaluate.cached import check_cache
from keysift.kernels import native, sums_cpu
from keysift.kernels.attend import attend, explain, only
from keysift.kernels.positions import Positions
from keysift.mechanisms import MECHANISMS, find
from keysift.mechanisms.rules import RunningSums
from keysift.mechanisms.spec import Mechanism
from keysift.models.arch import TransformerArch
from keysift.models.kinds import build, configure
from tests.kernels import checks
from tests.kernels.checks import compiles_whole, largest_saved
from tests.machine import needs_kernel
from tests.refusals import refuses
from tests.representatives import few_at_once

pytestmark = needs_kernel
KNOWN = [m for m in MECHANISMS if m.rule in sums_cpu.KINDS and "+" not in m.name]
FAMILY = [*KNOWN, find("softpick+value_gate"), find("sigmoid_visible+output_gate")]
every = pytest.mark.parametrize("mechanism", few_at_once(FAMILY))


agrees = partial(checks.agrees, "sums_cpu")


def test_every_mechanism_of_one_pass_is_known() -> None:
    assert {m.name for m in KNOWN} == {m.name for m in MECHANISMS if m.rule.single_pass} - {
        m.name for m in MECHANISMS if type(m.rule).__name__ == "Softmax" or m.name == "screening"
    }


@every
@pytest.mark.parametrize(("t", "s"), [(1, 1), (2, 2), (1, 130), (5, 40), (40, 33), (63, 63), (65, 65)])
def test_lengths_and_caches(mechanism: Mechanism, t: int, s: int) -> None:
    if (t, s) == (1, 1) and isinstance(mechanism.rule, RunningSums):
        alone(mechanism)
    else:
        agrees(mechanism, t, s)


def alone(mechanism: Mechanism) -> None:
    """One key has all the weight: the gradient of its score is the rounding of two equal numbers, 0 but by luck."""
    given = {name: value.float() for name, value in draw(mechanism, 1, 1).items()}
    fast = answers(mechanism, given, torch.float32, backend="sums_cpu")
    exact = answers(mechanism, given, torch.float64, backend="dense")
    for name in ("output", "gradient of q", "gradient of k", "gradient of v"):
        torch.testing.assert_close(fast[name], exact[name], rtol=2e-6, atol=2e-5 if name[-1] in "qk" else 1e-6)


@pytest.mark.slow
@every
def test_several_chunks_of_queries(mechanism: Mechanism) -> None:
    agrees(mechanism, 300, 300)
    agrees(mechanism, 290, 340)


@every
def test_places(mechanism: Mechanism) -> None:
    agrees(mechanism, 20, 33, causal=False)
    agrees(mechanism, 90, 90, positions=Positions.packed([[3, 80, 7], [90]]))
    agrees(mechanism, 90, 90, positions=Positions.packed([[3, 80, 5], [60]], 90), causal=False)
    agrees(mechanism, 20, 20, positions=Positions.padded([3, 0], 20))
    agrees(mechanism, 4, 30, positions=Positions.padded([1, 0], 4, start=[11, 26]).seeing([0, 0], [14, 30], 30))


@every
def test_rows_that_see_nothing(mechanism: Mechanism) -> None:
    fast = agrees(mechanism, 20, 9)
    assert (fast["output"][:, :, :11] == 0).all()
    assert (fast["gradient of q"][:, :, :11] == 0).all()
    fast = agrees(mechanism, 20, 20, positions=Positions.padded([20, 4], 20))
    assert (fast["output"][0] == 0).all()


@pytest.mark.parametrize("name", ["softpick", "relu_exp_normalised", "relu_exp", "sigmoid_visible"])
@pytest.mark.parametrize("size", [1e-3, 0.1, 8.0])
def test_scores_of_every_size(name: str, size: float) -> None:
    """Small scores keep their digits, large ones do not overflow; q and k are multiplied by the root of `size`."""
    mechanism = find(name)
    draws = [draw(mechanism, 70, 70, seed=seed) for seed in range(3)]
    for given in draws:
        given["q"] = given["q"] * math.sqrt(size)
        given["k"] = given["k"] * math.sqrt(size) * (-1 if size == 0.1 else 1)  # most scores negative
    no_worse_than_plain(mechanism, *draws, backend="sums_cpu")


def test_a_row_of_refused_keys_is_zero() -> None:
    q = torch.ones(1, 1, 5, 4, requires_grad=True)
    for name in ("relu_exp_normalised", "softpick", "relu", "relu_exp"):
        out = attend(name, q, -q.detach(), q.detach(), backend="sums_cpu")
        assert (out == 0).all()
        (slope,) = torch.autograd.grad(out.sum(), q)
        assert (slope == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    for name in ("softpick", "sigmoid_visible"):
        mechanism = find(name)
        no_worse_than_plain(mechanism, draw(mechanism, 40, 40), backend="sums_cpu", dtype=dtype)


def test_the_layout_in_memory_changes_nothing() -> None:
    plain = [torch.randn(1, 4, 6, 2) for _ in range(3)]
    apart = [x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2) for x in plain]
    torch.testing.assert_close(attend("softpick", *apart), attend("softpick", *plain))


def test_threads_do_not_change_a_bit() -> None:
    leaves = [torch.randn(1, 3, 700, 8).requires_grad_() for _ in range(3)]
    found = []
    before = torch.get_num_threads()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        out = attend("softpick", *leaves, backend="sums_cpu")
        found.append((out, *torch.autograd.grad(out.sin().sum(), leaves)))
    torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_is_chosen_and_says_why_not() -> None:
    q = torch.randn(1, 1, 8, 4)
    assert explain("softpick", q, q, q).backend == "sums_cpu"
    reasons = {
        "it never forms the weights": {"return_weights": True},
        "a keep mask or a bias was given": {"keep": torch.ones(8, 8, dtype=torch.bool)},
        "positions were given one by one, not as runs that count up": {
            "positions": Positions.explicit(torch.arange(8), torch.arange(8))
        },
        "queries and keys are more than 6e+17 positions apart": {
            "positions": Positions(queries=8, keys=8, first=1 << 60)
        },
    }
    for reason, options in reasons.items():
        assert explain("softpick", q, q, q, **options).declined["sums_cpu"] == reason  # type: ignore[arg-type]
    assert explain("sparsemax", q, q, q).declined["sums_cpu"] == "it knows other rules than that of sparsemax"
    for other, reason in (
        (q.double(), "torch.float64 is not supported"),
        (q.to("meta"), "the tensors are on meta"),
    ):
        assert explain("softpick", other, other, other).declined["sums_cpu"] == reason


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_under_transforms_and_tangents_another_backend_runs() -> None:
    q = torch.randn(3, 1, 2, 8, 4)
    out = torch.func.vmap(lambda x: attend("softpick", x, x, x))(q)
    torch.testing.assert_close(out, torch.stack([attend("softpick", x, x, x) for x in q]))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q[0], torch.ones_like(q[0]))
        assert explain("softpick", dual, dual, dual).declined["sums_cpu"] == "it has no forward-mode derivative"
        found = torch.autograd.forward_ad.unpack_dual(attend("softpick", dual, dual, dual))
        assert found.tangent is not None
        assert found.tangent.abs().max() > 0


def test_second_derivatives_are_refused() -> None:
    q = torch.randn(1, 1, 4, 4, requires_grad=True)
    (slope,) = torch.autograd.grad(attend("softpick", q, q, q).sum(), q, create_graph=True)
    with refuses("first derivatives only; for second ones pass backend='dense'"):
        torch.autograd.grad(slope.sum(), q)


@pytest.mark.slow
def test_the_operators_are_what_torch_expects() -> None:
    q, k, v = (torch.randn(1, 2, 6, 4, requires_grad=True) for _ in range(3))
    shift = torch.zeros(1, 2, 6, requires_grad=True)
    torch.library.opcheck(sums_cpu._sums, (q, k, v, shift, None, 0, 3, 0.5, 0.0))
    torch.library.opcheck(sums_cpu._sums, (q, k, v, None, torch.tensor([[0, 1, 3, 1, 3, 0]]), 0, 5, 0.5, 1e-8))


@pytest.mark.parametrize("name", ["softpick", "sigmoid_visible"])
def test_caches(name: str) -> None:
    """Through a cache, in calls of several lengths and token by token, logits are those of one forward pass."""
    arch = TransformerArch(depth=2, heads=2, width=16, mechanism=name)
    model = build(configure(arch, vocab_size=11, context=64), torch.Generator().manual_seed(0)).eval()
    with only("sums_cpu"):
        check_cache(model, (70, 3, 1, 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softpick", "sigmoid_visible", "relu"])
def test_compiles_whole(name: str) -> None:
    compiles_whole(name, "sums_cpu")


def test_no_tensor_grows_with_queries_times_keys() -> None:
    q = torch.randn(1, 1, 640, 4, requires_grad=True)
    assert largest_saved(lambda: attend("softpick", q, q, q, backend="sums_cpu")) <= 640 * 4


def test_the_library_refuses_what_it_cannot_sum() -> None:
    x = torch.zeros(1, 1, 2, 4)
    with refuses("the compiled kernel refused the call: kind 9 is unknown"):
        sums_cpu._forward(sums_cpu.Inputs(x, x, x, None, None, 0, 9, 1.0, 0.0))
    with refuses("refused the call: piece 0 .* is out of range or order"):
        sums_cpu._forward(sums_cpu.Inputs(x, x, x, None, torch.tensor([[0, 0, 3, 0, 2, 0]]), 0, 0, 1.0, 0.0))
    problem = sums_cpu._problem(sums_cpu.Inputs(x, x, x, None, None, 0, 0, 1.0, 0.0))
    assert native.library().keysift_sums_backward(ctypes.byref(problem), None, None, None, None) != 0
    assert b"must not be NULL" in native.library().keysift_last_error()
