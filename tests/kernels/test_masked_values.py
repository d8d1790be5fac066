"""NaN and inf at masked positions reach no output and no gradient, for every mechanism and backend."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from keysift.core.errors import UnsupportedError
from keysift.kernels.attend import BACKENDS, attend, explain
from keysift.kernels.eager import blockwise
from keysift.kernels.weigh import weigh
from keysift.mechanisms import MECHANISMS, find
from keysift.mechanisms.spec import Mechanism, Per
from tests.machine import needs_kernel
from tests.refusals import refuses
from tests.representatives import slow_unless_representative

ALL = [*MECHANISMS, *map(find, ("screening+value_gate", "differential_v2+output_gate"))]
LENGTH = 24
MASKED, EMPTY_QUERY = [3, 11], 7  # masked keys, and a query with no visible keys
MASKED_VALUES = [math.nan, math.inf, -math.inf, 1e30]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockwise, "BLOCK", 16)


def make_inputs(mechanism: Mechanism) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(4)
    centre = torch.tensor([1.0, 0.6, -0.8, 0.5])
    sizes = {"B": 2, "H": 4, "G": 2, "T": LENGTH, "S": LENGTH, "V": 3}
    actual = {
        "q": centre + 0.6 * torch.randn(2, 4 * mechanism.maps, LENGTH, 4, generator=generator),
        "k": centre + 0.6 * torch.randn(2, 2 * mechanism.key_maps, LENGTH, 4, generator=generator),
        "v": torch.randn(2, 2, LENGTH, 3, generator=generator),
    }
    for scalar in mechanism.scalars:
        if scalar.follows is None:
            middle = scalar.probes[len(scalar.probes) // 2]
            actual[scalar.name] = torch.full([sizes[axis] for axis in scalar.per.value], middle)
    return actual


def backends(mechanism: Mechanism, **options: Any) -> list[str]:
    plain = make_inputs(mechanism)
    supported = []
    for backend in BACKENDS.names():
        try:
            explain(mechanism, plain["q"], plain["k"], plain["v"], backend=backend, **options)
        except UnsupportedError:
            continue
        supported.append(backend)
    assert "dense" in supported
    return supported


def output_and_gradients(
    mechanism: Mechanism, inputs: dict[str, Tensor], rows: slice = slice(None), **options: Any
) -> dict[str, Tensor]:
    leaves = {name: value.clone().requires_grad_() for name, value in inputs.items()}
    q, k, v, *_ = leaves.values()
    scalars = {name: value for name, value in leaves.items() if name not in "qkv"}
    out = attend(mechanism, q, k, v, scalars=scalars, **options)
    output_gradient = torch.linspace(-1, 1, out.numel()).view(out.shape).sin() + 0.3
    grads = torch.autograd.grad((out * output_gradient)[:, :, rows].sum(), list(leaves.values()), allow_unused=True)
    return {"out": out.detach(), **{name: g for name, g in zip(leaves, grads, strict=True) if g is not None}}


def overwrite(
    mechanism: Mechanism, inputs: dict[str, Tensor], fill: float, keys: list[int], queries: list[int]
) -> None:
    """Overwrite, in place, every input that belongs to these keys or queries."""
    inputs["k"][:, :, keys] = inputs["v"][:, :, keys] = fill
    inputs["q"][:, :, queries] = fill
    for scalar in mechanism.scalars:
        if math.isnan(fill) and scalar.per in (Per.KEY, Per.KEY_CHANNEL):
            inputs[scalar.name][:, :, keys] = fill
        if math.isnan(fill) and scalar.per in (Per.QUERY, Per.QUERY_CHANNEL):
            inputs[scalar.name][:, :, queries] = fill


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor], rows: slice = slice(None)) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        selected = rows if name == "out" else slice(None)
        torch.testing.assert_close(actual[name][..., selected, :], value[..., selected, :]) if value.ndim == 4 else (
            torch.testing.assert_close(actual[name], value)
        )


@pytest.mark.parametrize("fill", MASKED_VALUES, ids=str)
@pytest.mark.parametrize("mechanism", slow_unless_representative(ALL))
def test_masked_keys_and_queries_without_keys(mechanism: Mechanism, fill: float) -> None:
    keep = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    keep[:, MASKED] = False
    keep[EMPTY_QUERY] = False
    for backend in backends(mechanism, keep=keep):
        clean, overwritten = make_inputs(mechanism), make_inputs(mechanism)
        overwrite(mechanism, overwritten, fill, MASKED, [EMPTY_QUERY])
        expected = output_and_gradients(mechanism, clean, keep=keep, backend=backend)
        actual = output_and_gradients(mechanism, overwritten, keep=keep, backend=backend)
        assert_same(actual, expected)
        assert (actual["out"][:, :, EMPTY_QUERY] == 0).all()
        assert (actual["q"][:, :, EMPTY_QUERY] == 0).all()
        assert (actual["k"][:, :, MASKED] == 0).all()
        assert (actual["v"][:, :, MASKED] == 0).all()


@pytest.mark.parametrize("fill", MASKED_VALUES[:3], ids=str)
@pytest.mark.parametrize("mechanism", slow_unless_representative(ALL))
def test_future_keys(mechanism: Mechanism, fill: float) -> None:
    """The last key reaches no query before the last one, whose output is NaN."""
    last, before = [LENGTH - 1], slice(0, LENGTH - 1)
    for backend in backends(mechanism):
        clean, overwritten = make_inputs(mechanism), make_inputs(mechanism)
        overwrite(mechanism, overwritten, fill, last, last)
        expected = output_and_gradients(mechanism, clean, before, backend=backend)
        actual = output_and_gradients(mechanism, overwritten, before, backend=backend)
        assert_same(actual, expected, before)
        assert actual["out"][:, :, -1].isnan().all()


@pytest.mark.parametrize("mechanism", [m for m in ALL if m.takes_bias], ids=lambda mechanism: mechanism.name)
def test_bias_of_future_keys(mechanism: Mechanism) -> None:
    future = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    bias = torch.randn(LENGTH, LENGTH)
    for backend in backends(mechanism, bias=bias):
        actual = []
        for fill in (0.0, math.nan, math.inf):
            leaf = bias.masked_fill(future, fill).requires_grad_(backend != "sdpa")  # its kernel has no gradient for it
            inputs = make_inputs(mechanism)
            result = output_and_gradients(mechanism, inputs, bias=leaf, backend=backend)
            scalars = {name: value for name, value in inputs.items() if name not in "qkv"}
            out = attend(mechanism, inputs["q"], inputs["k"], inputs["v"], bias=leaf, scalars=scalars, backend=backend)
            if leaf.requires_grad:
                result["bias"] = torch.autograd.grad(out.square().sum(), leaf)[0]
            actual.append(result)
        for result in actual[1:]:
            assert_same(result, actual[0])


def test_a_visible_nan_reaches_the_output() -> None:
    """Only in the rows that attend to it: key 5 makes the outputs and weights of rows 5 and later NaN."""
    inputs = make_inputs(find("softmax"))
    inputs["v"][0, 0, 5, 1] = math.nan
    out, w = attend("softmax", inputs["q"], inputs["k"], inputs["v"], return_weights=True)
    assert out[0, :2, 5:].isnan().all()
    assert w[0, 0, 6, :7].isnan().all()
    assert (w[0, 0, 6, 7:] == 0).all()
    for clean in (out[0, :2, :5], out[0, 2:], out[1], w[0, 0, :5], w[1]):
        assert clean.isfinite().all()


def test_a_nan_beyond_the_window_is_ignored() -> None:
    mechanism = find("screening")
    for backend in backends(mechanism):
        inputs = make_inputs(mechanism)
        inputs["v"][:, :, 0] = math.nan
        scalars = {"window": 4.0, "acceptance": 0.9}
        out = attend(mechanism, inputs["q"], inputs["k"], inputs["v"], scalars=scalars, backend=backend)
        assert out[:, :, :4].isnan().all()
        assert out[:, :, 4:].isfinite().all()


def test_non_finite_scores_of_masked_pairs() -> None:
    for mechanism in MECHANISMS:
        x = torch.tensor([0.9, math.nan, 0.7], requires_grad=True)
        w = weigh(mechanism, x, keep=[True, False, True])
        w.square().sum().backward()
        assert w[1] == 0
        assert x.grad is not None
        assert x.grad.isfinite().all()
        assert x.grad[1] == 0


def test_a_compiled_graph_sanitizes_too() -> None:
    inputs = make_inputs(find("softmax"))
    compiled = torch.compile(lambda q, k, v: attend("softmax", q, k, v), fullgraph=True, backend="eager")
    expected = compiled(inputs["q"], inputs["k"], inputs["v"])
    inputs["v"][:, :, -1] = math.nan
    actual = compiled(inputs["q"], inputs["k"], inputs["v"])
    torch.testing.assert_close(actual[:, :, :-1], expected[:, :, :-1])
    assert actual[:, :, -1].isnan().all()


def test_decoding_skips_sanitizing() -> None:
    """Only for a backend that reads visible keys only: the compiled kernel, forward."""
    mechanism = find("screening")
    for backend in backends(mechanism):
        inputs = make_inputs(mechanism)
        inputs["k"][:, :, 0] = inputs["v"][:, :, 0] = math.nan
        with torch.no_grad():
            out = attend(
                mechanism, inputs["q"][:, :, -1:], inputs["k"], inputs["v"], scalars={"window": 4.0}, backend=backend
            )
        assert out.isfinite().all()


def test_only_projected_scalars_may_be_nan() -> None:
    gate = find("softmax+value_gate").scalar("value_gate")
    gate.check("softmax+value_gate", torch.tensor([math.nan, 0.5]))
    with refuses("needs value_gate >= 0 and <= 1, got nan"):
        dataclasses.replace(gate, per=Per.HEAD).check("softmax", torch.tensor([math.nan, 0.5]))


@needs_kernel
@pytest.mark.parametrize("fill", MASKED_VALUES[:3], ids=str)
def test_the_compiled_kernel_ignores_masked_values(fill: float) -> None:
    """In a compiled graph inputs are not sanitized. Masked values reach no output and no gradient.

    A row that attends to one is NaN and gets no gradient. The lengths cover the dense and the sparse kernel path.
    """
    generator = torch.Generator().manual_seed(0)
    inputs = {n: 1 + 0.3 * torch.randn(1, 2, 200, 16, generator=generator) for n in "qkv"}
    inputs |= {"window": torch.tensor([9.0, math.inf]), "acceptance": torch.tensor([0.9, 0.9])}
    before = slice(0, 150)

    def run(q: Tensor, k: Tensor, v: Tensor, window: Tensor, acceptance: Tensor) -> Tensor:
        return attend("screening", q, k, v, scalars={"window": window, "acceptance": acceptance})

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    actual = []
    for overwritten in (False, True):
        leaves = {name: value.clone() for name, value in inputs.items()}
        if overwritten:
            leaves["k"][:, :, 150] = leaves["v"][:, :, 170] = leaves["q"][:, :, 160] = fill
        leaves = {name: value.requires_grad_() for name, value in leaves.items()}
        out = compiled(*leaves.values())
        grads = torch.autograd.grad(out[:, :, before].square().sum(), list(leaves.values()))
        actual.append((out.detach(), *grads))
    for clean_result, result in zip(*actual, strict=True):
        cut = (slice(None), slice(None), before) if clean_result.ndim == 4 else ...
        torch.testing.assert_close(result[cut], clean_result[cut])
        if clean_result.ndim == 4 and clean_result is not actual[0][0]:
            assert torch.equal(result[:, :, 150:], clean_result[:, :, 150:])
    assert actual[1][0][:, 1, 150:].isnan().all()
    assert actual[1][0][:, 0, 180:].isfinite().all()
