"""What takes no part may hold anything: every mechanism on every backend that runs it, value and every gradient."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from keysift.core.errors import UnsupportedError
from keysift.kernels import blockwise
from keysift.kernels.attend import BACKENDS, attend, explain
from keysift.kernels.weigh import weigh
from keysift.mechanisms import MECHANISMS, find
from keysift.mechanisms.spec import Mechanism, Per
from tests.machine import needs_kernel
from tests.refusals import refuses
from tests.representatives import few_at_once

ALL = [*MECHANISMS, *map(find, ("screening+value_gate", "differential_v2+output_gate"))]
LENGTH = 24
MASKED, BLIND = [3, 11], 7  # keys nobody sees, a query that sees nothing
ANYTHING = [math.nan, math.inf, -math.inf, 1e30]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockwise, "BLOCK", 16)


def given(mechanism: Mechanism) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(4)
    centre = torch.tensor([1.0, 0.6, -0.8, 0.5])
    sizes = {"B": 2, "H": 4, "G": 2, "T": LENGTH, "S": LENGTH, "V": 3}
    found = {
        "q": centre + 0.6 * torch.randn(2, 4 * mechanism.maps, LENGTH, 4, generator=generator),
        "k": centre + 0.6 * torch.randn(2, 2 * mechanism.key_maps, LENGTH, 4, generator=generator),
        "v": torch.randn(2, 2, LENGTH, 3, generator=generator),
    }
    for scalar in mechanism.scalars:
        if scalar.follows is None:
            middle = scalar.probes[len(scalar.probes) // 2]
            found[scalar.name] = torch.full([sizes[axis] for axis in scalar.per.value], middle)
    return found


def backends(mechanism: Mechanism, **options: Any) -> list[str]:
    plain = given(mechanism)
    able = []
    for backend in BACKENDS.names():
        try:
            explain(mechanism, plain["q"], plain["k"], plain["v"], backend=backend, **options)
        except UnsupportedError:
            continue
        able.append(backend)
    assert "dense" in able
    return able


def answers(
    mechanism: Mechanism, inputs: dict[str, Tensor], rows: slice = slice(None), **options: Any
) -> dict[str, Tensor]:
    leaves = {name: value.clone().requires_grad_() for name, value in inputs.items()}
    q, k, v, *_ = leaves.values()
    scalars = {name: value for name, value in leaves.items() if name not in "qkv"}
    out = attend(mechanism, q, k, v, scalars=scalars, **options)
    towards = torch.linspace(-1, 1, out.numel()).view(out.shape).sin() + 0.3
    grads = torch.autograd.grad((out * towards)[:, :, rows].sum(), list(leaves.values()), allow_unused=True)
    return {"out": out.detach(), **{name: g for name, g in zip(leaves, grads, strict=True) if g is not None}}


def spoil(mechanism: Mechanism, inputs: dict[str, Tensor], what: float, keys: list[int], queries: list[int]) -> None:
    """In place: whatever belongs to these keys and these queries alone."""
    inputs["k"][:, :, keys] = inputs["v"][:, :, keys] = what
    inputs["q"][:, :, queries] = what
    for scalar in mechanism.scalars:
        if math.isnan(what) and scalar.per in (Per.KEY, Per.KEY_CHANNEL):
            inputs[scalar.name][:, :, keys] = what
        if math.isnan(what) and scalar.per in (Per.QUERY, Per.QUERY_CHANNEL):
            inputs[scalar.name][:, :, queries] = what


def same(found: dict[str, Tensor], wanted: dict[str, Tensor], rows: slice = slice(None)) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        cut = rows if name == "out" else slice(None)
        torch.testing.assert_close(found[name][..., cut, :], value[..., cut, :]) if value.ndim == 4 else (
            torch.testing.assert_close(found[name], value)
        )


@pytest.mark.parametrize("what", ANYTHING, ids=str)
@pytest.mark.parametrize("mechanism", few_at_once(ALL))
def test_masked_keys_and_blind_queries(mechanism: Mechanism, what: float) -> None:
    keep = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    keep[:, MASKED] = False
    keep[BLIND] = False
    for backend in backends(mechanism, keep=keep):
        clean, spoiled = given(mechanism), given(mechanism)
        spoil(mechanism, spoiled, what, MASKED, [BLIND])
        wanted = answers(mechanism, clean, keep=keep, backend=backend)
        found = answers(mechanism, spoiled, keep=keep, backend=backend)
        same(found, wanted)
        assert (found["out"][:, :, BLIND] == 0).all()
        assert (found["q"][:, :, BLIND] == 0).all()
        assert (found["k"][:, :, MASKED] == 0).all()
        assert (found["v"][:, :, MASKED] == 0).all()


@pytest.mark.parametrize("what", ANYTHING[:3], ids=str)
@pytest.mark.parametrize("mechanism", few_at_once(ALL))
def test_the_future(mechanism: Mechanism, what: float) -> None:
    """The last key reaches nothing before the last query, which sees it and says so."""
    last, before = [LENGTH - 1], slice(0, LENGTH - 1)
    for backend in backends(mechanism):
        clean, spoiled = given(mechanism), given(mechanism)
        spoil(mechanism, spoiled, what, last, last)
        wanted = answers(mechanism, clean, before, backend=backend)
        found = answers(mechanism, spoiled, before, backend=backend)
        same(found, wanted, before)
        assert found["out"][:, :, -1].isnan().all()


@pytest.mark.parametrize("mechanism", [m for m in ALL if m.takes_bias], ids=lambda mechanism: mechanism.name)
def test_the_future_of_a_bias(mechanism: Mechanism) -> None:
    future = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    bias = torch.randn(LENGTH, LENGTH)
    for backend in backends(mechanism, bias=bias):
        found = []
        for what in (0.0, math.nan, math.inf):
            leaf = bias.masked_fill(future, what).requires_grad_(backend != "sdpa")  # its kernel has no gradient for it
            inputs = given(mechanism)
            result = answers(mechanism, inputs, bias=leaf, backend=backend)
            scalars = {name: value for name, value in inputs.items() if name not in "qkv"}
            out = attend(mechanism, inputs["q"], inputs["k"], inputs["v"], bias=leaf, scalars=scalars, backend=backend)
            if leaf.requires_grad:
                result["bias"] = torch.autograd.grad(out.square().sum(), leaf)[0]
            found.append(result)
        for other in found[1:]:
            same(other, found[0])


def test_a_visible_nan_is_seen() -> None:
    """And only by those who see it: key 5 by the queries from 5 on, in the weights too."""
    inputs = given(find("softmax"))
    inputs["v"][0, 0, 5, 1] = math.nan
    out, w = attend("softmax", inputs["q"], inputs["k"], inputs["v"], return_weights=True)
    assert out[0, :2, 5:].isnan().all()
    assert w[0, 0, 6, :7].isnan().all()
    assert (w[0, 0, 6, 7:] == 0).all()
    for clean in (out[0, :2, :5], out[0, 2:], out[1], w[0, 0, :5], w[1]):
        assert clean.isfinite().all()


def test_a_key_beyond_the_window_is_not_seen() -> None:
    mechanism = find("screening")
    for backend in backends(mechanism):
        inputs = given(mechanism)
        inputs["v"][:, :, 0] = math.nan
        scalars = {"window": 4.0, "acceptance": 0.9}
        out = attend(mechanism, inputs["q"], inputs["k"], inputs["v"], scalars=scalars, backend=backend)
        assert out[:, :, :4].isnan().all()
        assert out[:, :, 4:].isfinite().all()


def test_scores_that_take_no_part() -> None:
    for mechanism in MECHANISMS:
        x = torch.tensor([0.9, math.nan, 0.7], requires_grad=True)
        w = weigh(mechanism, x, keep=[True, False, True])
        w.square().sum().backward()
        assert w[1] == 0
        assert x.grad is not None
        assert x.grad.isfinite().all()
        assert x.grad[1] == 0


def test_a_compiled_graph_hides_too() -> None:
    inputs = given(find("softmax"))
    compiled = torch.compile(lambda q, k, v: attend("softmax", q, k, v), fullgraph=True, backend="eager")
    wanted = compiled(inputs["q"], inputs["k"], inputs["v"])
    inputs["v"][:, :, -1] = math.nan
    found = compiled(inputs["q"], inputs["k"], inputs["v"])
    torch.testing.assert_close(found[:, :, :-1], wanted[:, :, :-1])
    assert found[:, :, -1].isnan().all()


def test_one_decoded_token_may_skip_the_look() -> None:
    """Only where the backend reads nothing else: the compiled kernel, forward."""
    mechanism = find("screening")
    for backend in backends(mechanism):
        inputs = given(mechanism)
        inputs["k"][:, :, 0] = inputs["v"][:, :, 0] = math.nan
        with torch.no_grad():
            out = attend(
                mechanism, inputs["q"][:, :, -1:], inputs["k"], inputs["v"], scalars={"window": 4.0}, backend=backend
            )
        assert out.isfinite().all()


def test_projected_scalars_may_be_nan_and_others_not() -> None:
    gate = find("softmax+value_gate").scalar("value_gate")
    gate.check("softmax+value_gate", torch.tensor([math.nan, 0.5]))
    with refuses("needs value_gate >= 0 and <= 1, got nan"):
        dataclasses.replace(gate, per=Per.HEAD).check("softmax", torch.tensor([math.nan, 0.5]))


@needs_kernel
@pytest.mark.parametrize("what", ANYTHING[:3], ids=str)
def test_the_compiled_kernel_hides_by_itself(what: float) -> None:
    """In a compiled graph nothing is hidden for it: what a row does not see reaches neither value nor gradient, and a
    row that sees it is NaN and gives no gradient. Long enough for both ways through the kernel."""
    generator = torch.Generator().manual_seed(0)
    inputs = {n: 1 + 0.3 * torch.randn(1, 2, 200, 16, generator=generator) for n in "qkv"}
    inputs |= {"window": torch.tensor([9.0, math.inf]), "acceptance": torch.tensor([0.9, 0.9])}
    before = slice(0, 150)

    def run(q: Tensor, k: Tensor, v: Tensor, window: Tensor, acceptance: Tensor) -> Tensor:
        return attend("screening", q, k, v, scalars={"window": window, "acceptance": acceptance})

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    found = []
    for spoiled in (False, True):
        leaves = {name: value.clone() for name, value in inputs.items()}
        if spoiled:
            leaves["k"][:, :, 150] = leaves["v"][:, :, 170] = leaves["q"][:, :, 160] = what
        leaves = {name: value.requires_grad_() for name, value in leaves.items()}
        out = compiled(*leaves.values())
        grads = torch.autograd.grad(out[:, :, before].square().sum(), list(leaves.values()))
        found.append((out.detach(), *grads))
    for one, other in zip(*found, strict=True):
        cut = (slice(None), slice(None), before) if one.ndim == 4 else ...
        torch.testing.assert_close(other[cut], one[cut])
        assert torch.equal(other[:, :, 150:], one[:, :, 150:]) if one.ndim == 4 and one is not found[0][0] else True
    assert found[1][0][:, 1, 150:].isnan().all()
    assert found[1][0][:, 0, 180:].isfinite().all()
