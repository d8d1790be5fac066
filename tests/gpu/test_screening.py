"""The screening kernels, interpreted, agree with the definition in fp64: output and every gradient."""

import math

import pytest
import torch

from keysift.kernels.attend import attend, explain
from keysift.kernels.gpu import device
from keysift.kernels.positions import Positions
from keysift.mechanisms.screening import SCREENING
from keysift.verify.agreement import check_agreement, output_and_gradients
from tests.gpu.cases import draw
from tests.gpu.interpreted import needs_interpreter
from tests.kernels.checks import poison_outputs
from tests.kernels.test_screening_cpu import screening_inputs

BACKEND = "screening_gpu"
CASES = 140
QUICK = 3  # cases that are not marked slow

pytestmark = needs_interpreter


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs start as NaN, so that an entry that no kernel writes fails the test."""
    poison_outputs(monkeypatch)


@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.slow] * (n >= QUICK)) for n in range(CASES)])
def test_agrees_with_the_definition(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the cases split their keys over programs, as calls with few queries do on a large device."""
    case = draw(seed)
    monkeypatch.setattr(device, "processors", lambda x: 64 if seed % 2 else 0)
    check_agreement(case.mechanism, *case.draws, backend=BACKEND, **case.options)


def test_cases_cover_what_they_should() -> None:
    """Most cases have outputs that are not zero; every kind of position, ablation and width occurs."""
    cases = [draw(seed) for seed in range(CASES)]
    assert sum(case.options["positions"].segments is not None for case in cases) > CASES // 4
    assert {case.mechanism.name for case in cases} == {"screening", "without_mipe", "without_tanh"}
    shapes = {(case.tensors["q"].shape, case.tensors["v"].shape) for case in cases}
    assert len(shapes) > 0.9 * CASES
    assert {case.tensors["q"].shape[3] for case in cases} >= {2, 8, 16, 64, 128}
    assert {case.tensors["v"].shape[3] for case in cases} >= {3, 16, 64, 128, 200}
    assert sum(case.tensors["q"].shape[1] > case.tensors["k"].shape[1] for case in cases) > CASES // 4


@pytest.mark.parametrize("scale", [1e-10, 1e18])
def test_lengths_do_not_matter(scale: float) -> None:
    """Squares of rows of 1e18 overflow in fp32. Rows shorter than 1e-12 are not normalised, by definition."""
    tensors = screening_inputs(20, 20, window=[9.0, math.inf])
    expected = output_and_gradients(SCREENING, tensors, torch.float32, backend=BACKEND)
    for name in "qkv":
        tensors[name] = tensors[name] * scale
    rescaled = output_and_gradients(SCREENING, tensors, torch.float32, backend=BACKEND)
    torch.testing.assert_close(rescaled["output"], expected["output"], rtol=0, atol=2e-6)
    torch.testing.assert_close(rescaled["gradient of q"] * scale, expected["gradient of q"], rtol=0, atol=2e-6)


def test_zero_vectors() -> None:
    tensors = screening_inputs(20, 20, window=[9.0, math.inf])
    for name in "qkv":
        tensors[name][:, :, 3] = 0
    check_agreement(SCREENING, tensors, backend=BACKEND)


def test_edges_are_exact() -> None:
    """A key exactly at the threshold has weight zero, and one past the window as well."""
    q = torch.tensor([[[[1.0, 0, 0, 0]]]])
    half = torch.tensor([0.5, math.sqrt(3) / 2, 0, 0])
    keys = torch.stack((half, -half, torch.tensor([0.0, 1, 0, 0])))[None, None]
    wide = {"window": math.inf, "acceptance": 0.5}
    assert (attend("screening", q, keys, torch.ones(1, 1, 3, 8), scalars=wide, backend=BACKEND) == 0).all()
    same = torch.ones(1, 1, 1, 4)
    four = {"window": 4.0, "acceptance": 0.5}
    gap = Positions(queries=1, keys=1, first=4, key_first=0)
    assert (
        attend("screening", same, same, torch.ones(1, 1, 1, 8), scalars=four, positions=gap, backend=BACKEND) == 0
    ).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_rows_that_are_not_finite(name: str) -> None:
    """Rows that see one are NaN and pass no gradient; the others are as without it."""
    tensors = {key: value.float() for key, value in screening_inputs(40, 40, window=[9.0, 30.0]).items()}
    scalars = {key: tensors[key] for key in ("window", "acceptance")}
    results = []
    for bad in (0.0, math.nan, math.inf):
        leaves = [tensors[key].clone() for key in "qkv"]
        if bad:
            leaves["qkv".index(name)][0, 1, 7, 2] = bad
        leaves = [leaf.requires_grad_() for leaf in leaves]
        out = attend("screening", *leaves, scalars=scalars, backend=BACKEND)
        sees = out.isnan().any(-1)
        grads = torch.autograd.grad(torch.where(sees[..., None], 0.0, out).sum(), leaves)
        results.append((out, sees, grads))
    clean, _, _ = results[0]
    for out, sees, grads in results[1:]:
        expected = torch.zeros_like(sees)
        expected[0, 1, 7 : 8 if name == "q" else 37] = True
        assert torch.equal(sees, expected)
        torch.testing.assert_close(out[~sees], clean[~sees])
        assert all(grad.isfinite().all() for grad in grads)
        assert (grads[0][0, 1, 7] == 0).all()


@pytest.mark.slow
def test_results_are_reproducible() -> None:
    """The same bits again: no atomic operations, and one order of every sum."""
    tensors = screening_inputs(70, 70, window=[9.0, math.inf], groups=1)
    first, second = (output_and_gradients(SCREENING, tensors, torch.float32, backend=BACKEND) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_operator_passes_opcheck() -> None:
    tensors = {name: value.float() for name, value in screening_inputs(20, 20, window=[9.0, 30.0]).items()}
    arguments = tuple(tensors[n].requires_grad_() for n in ("q", "k", "v", "window", "window", "acceptance"))
    inputs = (*arguments, Positions.packed([[7, 13], [4]], 20).segments, 0, 0, 256.0)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.keysift.screening.default, inputs, test_utils=checks, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_compiles_forward_and_backward() -> None:
    tensors = [value.float().requires_grad_() for value in screening_inputs(20, 20, window=[9.0, 30.0]).values()]

    def loss(*inputs: torch.Tensor) -> torch.Tensor:
        q, k, v, window, acceptance = inputs
        scalars = {"window": window, "acceptance": acceptance}
        return attend("screening", q, k, v, scalars=scalars, backend=BACKEND).square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for actual, expected in zip(
        torch.autograd.grad(compiled(*tensors), tensors), torch.autograd.grad(loss(*tensors), tensors), strict=True
    ):
        torch.testing.assert_close(actual, expected)


def test_strided_inputs() -> None:
    tensors = screening_inputs(40, 40, window=[9.0, math.inf])
    q, k, v = (tensors[name].float() for name in "qkv")
    scalars = {"window": tensors["window"].float(), "acceptance": 0.9}
    expected = attend("screening", q, k, v, scalars=scalars, backend=BACKEND)
    for views in (
        [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)],
        [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v)],
    ):
        assert torch.equal(attend("screening", *views, scalars=scalars, backend=BACKEND), expected)
    assert explain("screening", q, k, v, backend=BACKEND).backend == BACKEND
