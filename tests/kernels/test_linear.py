"""Products through oneDNN agree with F.linear in value and every gradient, and torch sees the calls that it must."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from keysift.kernels.cpu import linear as module
from keysift.kernels.cpu.linear import linear, linear_into


def draw(tokens: int = 700, dtype: torch.dtype = torch.float32, outputs: int = 130) -> tuple[Tensor, nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, tokens, 64, generator=generator, dtype=dtype)
    return x.requires_grad_(), nn.Parameter(torch.randn(outputs, 64, generator=generator, dtype=dtype))


def products(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the products that oneDNN computes."""
    calls: list[int] = []
    inner = module._product
    monkeypatch.setattr(module, "_product", lambda x, w: calls.append(1) or inner(x, w))  # type: ignore[func-returns-value]
    return calls


@pytest.mark.parametrize(("vendor", "products_of_oneDNN"), [("GenuineIntel", 7), ("AuthenticAMD", 10)])
@pytest.mark.parametrize("outputs", [130, 40])
def test_value_and_gradients(
    vendor: str, products_of_oneDNN: int, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_onednn_is_fastest", lambda: vendor == "AuthenticAMD")
    calls = products(monkeypatch)
    x, weight = draw(outputs=outputs)
    with torch.no_grad():
        exact = F.linear(x.double(), weight.double())
    for layout in (x, x.transpose(0, 1), x[:, ::2]):
        y, plain = linear(layout, weight), F.linear(layout, weight)
        dy = torch.linspace(-1, 1, y.numel()).view(y.shape).cos()
        torch.testing.assert_close(
            torch.autograd.grad(y, (x, weight), dy), torch.autograd.grad(plain, (x, weight), dy), rtol=1e-4, atol=1e-4
        )
        torch.testing.assert_close(y, plain, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(linear(x, weight).double(), exact, rtol=1e-4, atol=1e-4)
    assert len(calls) == products_of_oneDNN, "three products with their gradients, and one more"


def test_a_frozen_input_or_weight_gets_no_gradient() -> None:
    x, weight = draw()
    linear(x.detach(), weight).sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    linear(x, weight.detach()).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(x.grad, weight.detach().sum(0).expand_as(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("on_amd", "through_onednn"), [(False, 0), (True, 1)])
@torch.no_grad()
def test_into_given_memory(on_amd: bool, through_onednn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_onednn_is_fastest", lambda: on_amd)
    calls = products(monkeypatch)
    x, weight = draw()
    memory = torch.zeros(800, 130)
    for tokens in (700, 100):  # too few for oneDNN the second time
        linear_into(x[0, :tokens], weight, memory[50 : 50 + tokens])
        torch.testing.assert_close(memory[50 : 50 + tokens], x[0, :tokens] @ weight.mT, rtol=1e-4, atol=1e-4)
    assert len(calls) == through_onednn
    assert not memory[:50].any(), "nothing before or after it is written"
    assert not memory[750:].any()


@pytest.mark.parametrize("on_amd", [False, True])
def test_second_derivatives(on_amd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_onednn_is_fastest", lambda: on_amd)
    found = []
    for function, dtype in ((linear, torch.float32), (F.linear, torch.float64)):
        x, weight = draw()
        x, weight = x.detach().to(dtype).requires_grad_(), nn.Parameter(weight.detach().to(dtype))
        (dx,) = torch.autograd.grad(function(x, weight).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(dx.square().sum(), (x, weight)))
    for got, want in zip(*found, strict=True):
        # Sums of large terms of both signs: errors are relative to the largest element.
        torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-6 * float(want.abs().max()))


def test_calls_that_stay_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = products(monkeypatch)
    x, weight = draw()
    with FlopCounterMode(display=False) as counter:
        linear(x, weight)
    assert counter.get_total_flops() == 2 * x.numel() * 130, "a mode of torch sees the product"
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight).dtype == torch.bfloat16
    linear(*draw(dtype=torch.float64))
    linear(x[:1, :100], weight)
    linear(x[:0], weight)
    torch.func.vmap(linear, in_dims=(0, None))(x.detach(), weight.detach())
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    linear(x, weight)
    assert not calls
