"""Plain projections are products through oneDNN; a module that something wraps or hooks is called."""

import pytest
import torch
from torch import Tensor, nn

from keysift.kernels.cpu import linear
from keysift.models.architecture import MultiscreenArch, TransformerArch
from keysift.models.registry import build, configure
from keysift.nn.projection import project, projection

TOKENS = 600  # more than the least for oneDNN


def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the weights that oneDNN multiplies with."""
    shapes: list[tuple[int, ...]] = []
    inner = linear._product

    def product(x: Tensor, weight: Tensor) -> Tensor:
        shapes.append(tuple(weight.shape))
        return inner(x, weight)

    monkeypatch.setattr(linear, "_product", product)
    return shapes


def test_hooked_and_other_modules_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = products(monkeypatch)
    x = torch.randn(1, TOKENS, 8)
    plain = projection(8, 12, 1.0, None)
    torch.testing.assert_close(project(plain, x), plain(x))
    assert shapes == [(12, 8)]
    hooked = projection(8, 12, 1.0, None)
    hooked.register_forward_hook(lambda module, args, out: 2 * out)
    torch.testing.assert_close(project(hooked, x), 2 * (x @ hooked.weight.mT))
    wrapped = nn.Sequential(plain, nn.ReLU())
    torch.testing.assert_close(project(wrapped, x), torch.relu(plain(x)))
    biased = projection(8, 12, 1.0, None, bias=True)
    nn.init.ones_(biased.bias)
    torch.testing.assert_close(project(biased, x), x @ biased.weight.mT + 1)
    assert len(shapes) == 1, "only the plain projection"


@pytest.mark.parametrize(
    ("arch", "expected"),
    [
        # q, k, v, o, gate, up and down of a layer, and the readout
        (TransformerArch(depth=1, heads=2, width=16, hidden_width=24), 8),
        # the joined input projection, o, and the readout
        (MultiscreenArch(depth=1, tiles=2, width=16), 3),
    ],
)
def test_models_multiply_through_onednn(
    arch: TransformerArch | MultiscreenArch, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(configure(arch, vocab_size=32, context=TOKENS), torch.Generator().manual_seed(0))
    tokens = torch.randint(32, (1, TOKENS))
    shapes = products(monkeypatch)
    logits = model(tokens)
    assert len(shapes) == expected
    gradients = torch.autograd.grad(logits.square().sum(), list(model.parameters()), allow_unused=True)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    count = len(shapes)
    plain = model(tokens)
    expected_gradients = torch.autograd.grad(plain.square().sum(), list(model.parameters()), allow_unused=True)
    assert len(shapes) == count, "without oneDNN, torch multiplies"
    torch.testing.assert_close(logits, plain, rtol=1e-4, atol=1e-4)
    for got, want in zip(gradients, expected_gradients, strict=True):
        if want is not None:
            torch.testing.assert_close(got, want, rtol=0, atol=1e-5 * float(want.abs().max()) + 1e-12)
