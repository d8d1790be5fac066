"""RoPE: a rotation by position, precise however far."""

import math

import torch

from keysift.nn.rotary import Rotary, Still


def test_one_pair_by_hand() -> None:
    x = torch.tensor([1.0, 0.0, 0.0, 2.0]).view(1, 1, 1, 4)
    turned = Rotary(4, 10_000.0)(x, torch.tensor([[3]]), 1.0).flatten()
    a, b = 3.0, 3.0 / 100
    expected = torch.tensor([math.cos(a), -2 * math.sin(b), math.sin(a), 2 * math.cos(b)])
    torch.testing.assert_close(turned, expected)


def test_only_the_distance_counts_even_far_away() -> None:
    q, k = torch.randn(2, 1, 1, 1, 8)
    rotary = Rotary(8, 10_000.0)

    def score(at: int, key_at: int) -> torch.Tensor:
        return (rotary(q, torch.tensor([[at]]), 1.0) * rotary(k, torch.tensor([[key_at]]), 1.0)).sum()

    torch.testing.assert_close(score(131_077, 131_071), score(6, 0), rtol=1e-5, atol=1e-6)
    assert (score(6, 0) - score(5, 0)).abs() > 1e-3


def test_a_factor_divides_the_position() -> None:
    x = torch.randn(2, 3, 4, 8)
    at = torch.arange(4)[None]
    torch.testing.assert_close(Rotary(8, 100.0)(x, 8 * at, 8.0), Rotary(8, 100.0)(x, at, 1.0))
    assert torch.equal(Still()(x, at, 8.0), x)


def test_bf16_angles_are_not_bf16() -> None:
    x = torch.randn(1, 1, 1, 8)
    at = torch.tensor([[599]])
    exact = Rotary(8, 10_000.0)(x.bfloat16().double(), at, 1.0)
    assert (Rotary(8, 10_000.0)(x.bfloat16(), at, 1.0).double() - exact).abs().max() < 0.02
