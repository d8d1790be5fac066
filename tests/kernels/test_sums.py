"""The sums_cpu backend agrees with the definition, gradients included, for every kind of positions."""

import ctypes
import math
from functools import partial

import pytest
import torch

from keysift.kernels.attend import attend, explain, force_backend
from keysift.kernels.cpu import library
from keysift.kernels.cpu import sums as sums_cpu
from keysift.kernels.positions import Positions
from keysift.mechanisms import MECHANISMS, find
from keysift.mechanisms.rules import RunningSums, Softmax, StickBreaking
from keysift.mechanisms.spec import Mechanism
from keysift.models.architecture import TransformerArch
from keysift.models.registry import build, configure
from keysift.verify.agreement import check_agreement, draw_inputs, output_and_gradients
from keysift.verify.cache_equality import check_cache
from tests.kernels import checks
from tests.kernels.checks import check_compiles, largest_saved
from tests.machine import needs_kernel
from tests.refusals import refuses
from tests.representatives import slow_unless_representative

pytestmark = needs_kernel
IMPLEMENTED = [m for m in MECHANISMS if m.rule in sums_cpu.KINDS and "+" not in m.name]
FAMILY = [*IMPLEMENTED, find("softpick+value_gate"), find("sigmoid_visible+output_gate")]
every = pytest.mark.parametrize("mechanism", slow_unless_representative(FAMILY))


agrees = partial(checks.agrees, "sums_cpu")


def test_every_additive_mechanism_is_implemented() -> None:
    assert {m.name for m in IMPLEMENTED} == {m.name for m in MECHANISMS if m.rule.single_pass} - {
        m.name for m in MECHANISMS if isinstance(m.rule, Softmax | StickBreaking) or m.name == "screening"
    }


@every
@pytest.mark.parametrize(("t", "s"), [(1, 1), (2, 2), (1, 130), (5, 40), (40, 33), (63, 63), (65, 65)])
def test_lengths_and_caches(mechanism: Mechanism, t: int, s: int) -> None:
    if (t, s) == (1, 1) and isinstance(mechanism.rule, RunningSums):
        check_single_key(mechanism)
    else:
        agrees(mechanism, t, s)


def check_single_key(mechanism: Mechanism) -> None:
    """If one key has all the weight, the gradient of its score is the difference of two equal numbers."""
    tensors = {name: value.float() for name, value in draw_inputs(mechanism, 1, 1).items()}
    fast = output_and_gradients(mechanism, tensors, torch.float32, backend="sums_cpu")
    exact = output_and_gradients(mechanism, tensors, torch.float64, backend="dense")
    for name in ("output", "gradient of q", "gradient of k", "gradient of v"):
        torch.testing.assert_close(fast[name], exact[name], rtol=2e-6, atol=2e-5 if name[-1] in "qk" else 1e-6)


@pytest.mark.slow
@every
def test_several_chunks_of_queries(mechanism: Mechanism) -> None:
    agrees(mechanism, 300, 300)
    agrees(mechanism, 290, 340)


@every
def test_positions(mechanism: Mechanism) -> None:
    agrees(mechanism, 20, 33, causal=False)
    agrees(mechanism, 90, 90, positions=Positions.packed([[3, 80, 7], [90]]))
    agrees(mechanism, 90, 90, positions=Positions.packed([[3, 80, 5], [60]], 90), causal=False)
    agrees(mechanism, 20, 20, positions=Positions.padded([3, 0], 20))
    agrees(
        mechanism, 4, 30, positions=Positions.padded([1, 0], 4, start=[11, 26]).with_cached_keys([0, 0], [14, 30], 30)
    )


@every
def test_queries_without_visible_keys(mechanism: Mechanism) -> None:
    fast = agrees(mechanism, 20, 9)
    assert (fast["output"][:, :, :11] == 0).all()
    assert (fast["gradient of q"][:, :, :11] == 0).all()
    fast = agrees(mechanism, 20, 20, positions=Positions.padded([20, 4], 20))
    assert (fast["output"][0] == 0).all()


@pytest.mark.parametrize("name", ["softpick", "relu_exp_normalised", "relu_exp", "sigmoid_visible"])
@pytest.mark.parametrize("size", [1e-3, 0.1, 8.0])
def test_scores_of_every_size(name: str, size: float) -> None:
    """Small scores lose no digits and large scores do not overflow. q and k are scaled by the square root of `size`."""
    mechanism = find(name)
    draws = [draw_inputs(mechanism, 70, 70, seed=seed) for seed in range(3)]
    for tensors in draws:
        tensors["q"] = tensors["q"] * math.sqrt(size)
        tensors["k"] = tensors["k"] * math.sqrt(size) * (-1 if size == 0.1 else 1)  # most scores negative
    check_agreement(mechanism, *draws, backend="sums_cpu")


def test_a_row_of_rejected_keys_is_zero() -> None:
    q = torch.ones(1, 1, 5, 4, requires_grad=True)
    for name in ("relu_exp_normalised", "softpick", "relu", "relu_exp"):
        out = attend(name, q, -q.detach(), q.detach(), backend="sums_cpu")
        assert (out == 0).all()
        (gradient,) = torch.autograd.grad(out.sum(), q)
        assert (gradient == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    for name in ("softpick", "sigmoid_visible"):
        mechanism = find(name)
        check_agreement(mechanism, draw_inputs(mechanism, 40, 40), backend="sums_cpu", dtype=dtype)


def test_memory_layout_does_not_matter() -> None:
    plain = [torch.randn(1, 4, 6, 2) for _ in range(3)]
    strided = [x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2) for x in plain]
    torch.testing.assert_close(attend("softpick", *strided), attend("softpick", *plain))


def test_results_do_not_depend_on_threads() -> None:
    leaves = [torch.randn(1, 3, 700, 8).requires_grad_() for _ in range(3)]
    actual = []
    before = torch.get_num_threads()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        out = attend("softpick", *leaves, backend="sums_cpu")
        actual.append((out, *torch.autograd.grad(out.sin().sum(), leaves)))
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*actual, strict=True))


def test_is_chosen_or_gives_a_reason() -> None:
    q = torch.randn(1, 1, 8, 4)
    assert explain("softpick", q, q, q).backend == "sums_cpu"
    reasons = {
        "it never forms the weights": {"return_weights": True},
        "it does not support a keep mask or a bias": {"keep": torch.ones(8, 8, dtype=torch.bool)},
        "it needs consecutive positions or segments, not explicit positions": {
            "positions": Positions.explicit(torch.arange(8), torch.arange(8))
        },
        "queries and keys are more than 6e+17 positions apart": {
            "positions": Positions(queries=8, keys=8, first=1 << 60)
        },
    }
    for reason, options in reasons.items():
        assert explain("softpick", q, q, q, **options).declined["sums_cpu"] == reason  # type: ignore[arg-type]
    assert explain("sparsemax", q, q, q).declined["sums_cpu"] == "it does not implement sparsemax"
    for x, reason in (
        (q.double(), "torch.float64 is not supported"),
        (q.to("meta"), "the tensors are on meta"),
    ):
        assert explain("softpick", x, x, x).declined["sums_cpu"] == reason


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_under_transforms_and_tangents_another_backend_runs() -> None:
    q = torch.randn(3, 1, 2, 8, 4)
    out = torch.func.vmap(lambda x: attend("softpick", x, x, x))(q)
    torch.testing.assert_close(out, torch.stack([attend("softpick", x, x, x) for x in q]))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q[0], torch.ones_like(q[0]))
        assert explain("softpick", dual, dual, dual).declined["sums_cpu"] == "it has no forward-mode derivative"
        actual = torch.autograd.forward_ad.unpack_dual(attend("softpick", dual, dual, dual))
        assert actual.tangent is not None
        assert actual.tangent.abs().max() > 0


def test_second_derivatives_are_refused() -> None:
    q = torch.randn(1, 1, 4, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(attend("softpick", q, q, q).sum(), q, create_graph=True)
    with refuses("no second derivatives; pass backend='dense'"):
        torch.autograd.grad(gradient.sum(), q)


@pytest.mark.slow
def test_operators_pass_opcheck() -> None:
    q, k, v = (torch.randn(1, 2, 6, 4, requires_grad=True) for _ in range(3))
    shift = torch.zeros(1, 2, 6, requires_grad=True)
    torch.library.opcheck(sums_cpu.sums_operator, (q, k, v, shift, None, 0, 0, 3, 0.5, 0.0))
    torch.library.opcheck(
        sums_cpu.sums_operator, (q, k, v, None, torch.tensor([[0, 1, 3, 1, 3, 0]]), 0, 2, 5, 0.5, 1e-8)
    )


@pytest.mark.parametrize("name", ["softpick", "sigmoid_visible"])
def test_caches(name: str) -> None:
    """With a cache, in calls of several lengths and token by token, the logits equal those of one forward pass."""
    arch = TransformerArch(depth=2, heads=2, width=16, mechanism=name)
    model = build(configure(arch, vocab_size=11, context=64), torch.Generator().manual_seed(0)).eval()
    with force_backend("sums_cpu"):
        check_cache(model, (70, 3, 1, 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softpick", "sigmoid_visible", "relu"])
def test_compiles(name: str) -> None:
    check_compiles(name, "sums_cpu")


def test_no_saved_tensor_grows_with_queries_times_keys() -> None:
    q = torch.randn(1, 1, 640, 4, requires_grad=True)
    assert largest_saved(lambda: attend("softpick", q, q, q, backend="sums_cpu")) <= 640 * 4


def test_the_library_refuses_invalid_problems() -> None:
    x = torch.zeros(1, 1, 2, 4)
    with refuses("the compiled kernel rejected the call: kind 9 is unknown"):
        sums_cpu._forward(sums_cpu.Inputs(x, x, x, None, None, 0, 0, 9, 1.0, 0.0))
    with refuses("rejected the call: segment 0 .* is out of range or order"):
        sums_cpu._forward(sums_cpu.Inputs(x, x, x, None, torch.tensor([[0, 0, 3, 0, 2, 0]]), 0, 0, 0, 1.0, 0.0))
    problem = sums_cpu.problem_of(sums_cpu.Inputs(x, x, x, None, None, 0, 0, 0, 1.0, 0.0))
    assert library.load().keysift_sums_backward(ctypes.byref(problem), None, None, None, None) != 0
    assert b"must not be NULL" in library.load().keysift_last_error()


@pytest.mark.parametrize("size", [1e-20, 1e-19, 1e-18])
def test_subnormal_scores(size: float) -> None:
    """The denominator is subnormal, so its inverse is infinite in fp32. The weights still sum to one, or zero."""
    generator = torch.Generator().manual_seed(0)
    q, k = (size * torch.randn(1, 1, 65, 1, generator=generator) for _ in range(2))
    v = torch.ones(1, 1, 65, 1, requires_grad=True)
    options = {"scale": 1e-3, "backend": "sums_cpu"}
    out = attend("relu_exp_normalised", q, k, v, **options)
    sums = out.detach().flatten()
    assert ((sums - 1).abs().lt(1e-5) | (sums == 0)).all()
    assert sums.sum() > 10
    (dv,) = torch.autograd.grad(out.sum(), v)
    torch.testing.assert_close(dv.sum(), sums.sum(), rtol=1e-4, atol=0)
    assert attend("softpick", q, k, v, **options).isfinite().all()
