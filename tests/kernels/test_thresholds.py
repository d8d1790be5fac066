"""The thresholds_cpu backend agrees with the definition for all kinds of positions, gradients included."""

import ctypes
import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from keysift.kernels.attend import attend, explain, force_backend
from keysift.kernels.cpu import library
from keysift.kernels.cpu import thresholds as thresholds_cpu
from keysift.kernels.cpu.library import ThresholdRows
from keysift.kernels.positions import Positions
from keysift.mechanisms import MECHANISMS, entmax, find
from keysift.mechanisms.rules import Threshold
from keysift.mechanisms.spec import Mechanism
from keysift.models.architecture import TransformerArch
from keysift.models.registry import build, configure
from keysift.verify.agreement import check_agreement, draw_inputs
from keysift.verify.cache_equality import check_cache
from tests.forked import run_pytest
from tests.kernels import checks
from tests.kernels.checks import check_compiles, largest_saved
from tests.machine import needs_kernel
from tests.refusals import refuses

pytestmark = needs_kernel
THRESHOLD_MECHANISMS = [*(m for m in MECHANISMS if isinstance(m.rule, Threshold)), find("sparsemax+output_gate")]
every_mechanism = pytest.mark.parametrize("mechanism", THRESHOLD_MECHANISMS, ids=lambda mechanism: mechanism.name)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use blocks so small that every case has several blocks of rows and of heads."""
    monkeypatch.setattr(thresholds_cpu, "PAIRS", 700)


agrees = partial(checks.agrees, "thresholds_cpu")


@every_mechanism
@pytest.mark.parametrize(("t", "s"), [(1, 1), (5, 40), (40, 33), (65, 65)])
def test_lengths_and_caches(mechanism: Mechanism, t: int, s: int) -> None:
    agrees(mechanism, t, s)


@every_mechanism
def test_positions(mechanism: Mechanism) -> None:
    agrees(mechanism, 20, 33, causal=False)
    agrees(mechanism, 60, 60, positions=Positions.packed([[3, 50, 7], [60]]))
    agrees(mechanism, 60, 60, positions=Positions.packed([[3, 50, 5], [40]], 60), causal=False)
    agrees(
        mechanism, 4, 30, positions=Positions.padded([1, 0], 4, start=[11, 26]).with_cached_keys([0, 0], [14, 30], 30)
    )


@every_mechanism
def test_queries_without_visible_keys(mechanism: Mechanism) -> None:
    fast = agrees(mechanism, 20, 9)
    assert (fast["output"][:, :, :11] == 0).all()
    assert (fast["gradient of q"][:, :, :11] == 0).all()
    fast = agrees(mechanism, 20, 20, positions=Positions.padded([20, 4], 20))
    assert (fast["output"][0] == 0).all()


@pytest.mark.parametrize("size", [1e-3, 30.0])
def test_scores_of_every_size(size: float) -> None:
    """Nearly equal scores give every key a weight, large scores only a few."""
    for name in ("sparsemax", "entmax15"):
        mechanism = find(name)
        draws = [draw_inputs(mechanism, 40, 40, seed=seed) for seed in range(3)]
        for inputs in draws:
            inputs["q"] = inputs["q"] * size
        check_agreement(mechanism, *draws, backend="thresholds_cpu")


def test_half_precision() -> None:
    mechanism = find("entmax15")
    check_agreement(mechanism, draw_inputs(mechanism, 20, 20), backend="thresholds_cpu", dtype=torch.bfloat16)


def weights(x: Tensor, order: float, visible: int | None = None) -> Tensor:
    """The weights of the rows of a matrix, computed by the library."""
    w, orders = x.clone(), torch.tensor([order])
    rows = ThresholdRows(1, *x.shape, x.shape[1] if visible is None else visible, 0, orders.data_ptr())
    library.check_status(library.load().keysift_threshold_weigh(ctypes.byref(rows), library.pointer(w)))
    return w


ROWS = st.lists(st.floats(-6, 6, width=32), min_size=1, max_size=70).map(lambda row: torch.tensor([row]))


@settings(max_examples=30)
@given(ROWS)
def test_weights_agree_with_the_solvers(x: Tensor) -> None:
    exact = x.double() - x.double().max()
    keep = torch.ones_like(exact, dtype=torch.bool)
    alpha = torch.tensor(1.3, dtype=torch.float64)
    for order, solve in ((2.0, entmax.solve_sparsemax), (1.5, entmax.solve_entmax15), (1.3, entmax.solve_by_bisection)):
        actual = weights(x, order)
        torch.testing.assert_close(actual.double(), solve(exact, keep, alpha), rtol=1e-5, atol=3e-7)
        assert actual.double().sum().item() == pytest.approx(1, abs=1e-6)


def test_long_rows_sum_to_one_with_exact_zeros() -> None:
    x = torch.randn(6, 5001, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [[1e-5], [0.01], [0.1], [1], [9], [1e3]]
    )
    for order in (2.0, 1.5, 1.2):
        w = weights(x, order)
        torch.testing.assert_close(w.double().sum(-1), torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-6)
        assert (w[0] > 0).all()
        assert (w[-1] == 0).sum() > 4900


def test_masked_scores_are_not_read_and_non_finite_rows_are_nan() -> None:
    x = torch.zeros(4, 20)
    x[:, 10:] = math.nan
    w = weights(x, 1.5, visible=7)
    assert (w[:, :7] > 0).all()
    assert (w[0, 7:] == 0).all()
    assert w[3, :10].isfinite().all()
    for non_finite in (math.nan, math.inf):
        x = torch.zeros(1, 40)
        x[0, 33] = non_finite
        for order in (2.0, 1.5, 1.3):
            assert weights(x, order).isnan().all()
    x = torch.zeros(1, 40)
    x[0, 3] = -math.inf
    assert weights(x, 2.0)[0, 3] == 0
    assert weights(torch.full((1, 3), -math.inf), 2.0).isnan().all()


def test_results_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds_cpu, "PAIRS", 1 << 16)
    leaves = [torch.randn(1, 2, 300, 8).requires_grad_() for _ in range(3)]
    alpha = torch.tensor([1.3, 1.7]).requires_grad_()
    actual = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            out = attend("alpha_entmax", *leaves, scalars={"alpha": alpha}, backend="thresholds_cpu")
            actual.append((out, *torch.autograd.grad(out.sin().sum(), [*leaves, alpha])))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(
        *actual, rtol=1e-6, atol=1e-6
    )  # matrix products of torch depend on the number of threads


def test_is_chosen_or_gives_a_reason() -> None:
    q = torch.randn(1, 1, 600, 4)
    for name in ("sparsemax", "entmax15", "alpha_entmax"):
        assert explain(name, q, q, q).backend == "thresholds_cpu"
    choice = explain("sparsemax", q, q, q, keep=torch.ones(600, 600, dtype=torch.bool))
    assert choice.backend == "by_rows"
    assert choice.declined["thresholds_cpu"] == "it does not support a keep mask or a bias"
    choice = explain("rectified_difference", *(q.expand(1, 2, 600, 4),) * 2, q)
    assert choice.declined["thresholds_cpu"] == "it runs sparsemax and entmax only, not rectified_difference"
    short = q[:, :, :8].clone()
    assert explain("sparsemax", short, short, short).backend == "thresholds_cpu"
    # With gradients the dense definition runs small calls: it has second derivatives.
    small = explain("sparsemax", short.requires_grad_(), short, short)
    assert small.declined["thresholds_cpu"] == "the call is too small to be split into blocks"


def test_autocast_changes_nothing() -> None:
    leaves = [torch.randn(1, 2, 20, 4).requires_grad_() for _ in range(3)]
    actual = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            out = attend("entmax15", *leaves, backend="thresholds_cpu")
            actual.append((out, *torch.autograd.grad(out.sin().sum(), leaves)))
    torch.testing.assert_close(*actual, rtol=0, atol=0)


def test_second_derivatives_are_refused() -> None:
    q = torch.randn(1, 1, 4, 4, requires_grad=True)
    out = attend("sparsemax", q, q, q, backend="thresholds_cpu")
    (gradient,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with refuses("no second derivatives; pass backend='dense'"):
        torch.autograd.grad(gradient.sum(), q)


def test_the_library_refuses_invalid_rows() -> None:
    with refuses("the compiled kernel rejected the call: order 3 is not above 1 and at most 2"):
        weights(torch.zeros(1, 4), 3.0)
    rows = ThresholdRows(1, 1, 4, 4, 0, None)
    assert library.load().keysift_threshold_weigh(ctypes.byref(rows), None) != 0
    assert b"must not be NULL" in library.load().keysift_last_error()


def test_no_saved_tensor_grows_with_queries_times_keys() -> None:
    q = torch.randn(1, 1, 640, 4, requires_grad=True)
    assert largest_saved(lambda: attend("sparsemax", q, q, q, backend="thresholds_cpu")) <= 640 * 4


def test_caches() -> None:
    """With a cache, in calls of several lengths and token by token, the logits equal those of one forward pass."""
    arch = TransformerArch(depth=2, heads=2, width=16, mechanism="entmax15")
    model = build(configure(arch, vocab_size=11, context=64), torch.Generator().manual_seed(0)).eval()
    with force_backend("thresholds_cpu"):
        check_cache(model, (40, 3, 1, 1))


@pytest.mark.slow
def test_operators_pass_opcheck() -> None:
    q, k, v = (torch.randn(1, 2, 6, 4, requires_grad=True) for _ in range(3))
    orders = torch.tensor([1.3, 1.6], requires_grad=True)
    for segments in (None, torch.tensor([[0, 1, 3, 1, 3, 0]])):
        torch.library.opcheck(thresholds_cpu._thresholds, (q, k, v, orders, segments, 0, 0, 0.5))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sparsemax", "alpha_entmax"])
def test_compiles(name: str) -> None:
    check_compiles(name, "thresholds_cpu")


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["avx512", "avx2", "plain"])
def test_every_instruction_set(isa: str) -> None:
    """In a separate process, because the variant is chosen when the library loads."""
    if isa not in library.instruction_sets():
        pytest.skip(f"THIS MACHINE CANNOT RUN {isa}; it runs {', '.join(library.instruction_sets())}")
    outcome = run_pytest(
        __file__,
        "-k",
        "lengths and 65 or positions or solvers or long_rows or non_finite or every_size",
        KEYSIFT_ISA=isa,
    )
    assert outcome.code == 0, outcome.output[-2000:]


def test_default_dtype_does_not_matter() -> None:
    leaves = [torch.randn(1, 2, 9, 8).requires_grad_() for _ in range(3)]
    torch.set_default_dtype(torch.float64)
    try:
        out = attend("entmax15", *leaves, backend="thresholds_cpu")
        actual = torch.autograd.grad(out.sum(), leaves)
    finally:
        torch.set_default_dtype(torch.float32)
    assert {x.dtype for x in (out, *actual)} == {torch.float32}


def test_overflowing_sizes_are_refused() -> None:
    score, orders = torch.ones(1), torch.full((1,), 2.0)
    rows = ThresholdRows(1 << 30, 1 << 30, 1 << 30, 1, 0, orders.data_ptr())
    with refuses("matrices x rows x keys is out of range"):
        library.check_status(library.load().keysift_threshold_weigh(ctypes.byref(rows), library.pointer(score)))
