"""RoPE: a rotation by position, precise however far."""

import math

import torch

from keysift.kernels.positions import Positions
from keysift.nn.cache import Reading
from keysift.nn.inference import Inference
from keysift.nn.rotary import Rotary, Still


def standing(*at: int, factor: float = 1.0) -> Reading:
    positions = torch.tensor(at)
    return Reading(Positions.explicit(positions, positions), Inference(rope_factor=factor))


def test_one_pair_by_hand() -> None:
    x = torch.tensor([1.0, 0.0, 0.0, 2.0]).view(1, 1, 1, 4)
    turned = Rotary(4, 10_000.0)(x, standing(3)).flatten()
    a, b = 3.0, 3.0 / 100
    expected = torch.tensor([math.cos(a), -2 * math.sin(b), math.sin(a), 2 * math.cos(b)])
    torch.testing.assert_close(turned, expected)


def test_only_the_distance_counts_even_far_away() -> None:
    q, k = torch.randn(2, 1, 1, 1, 8)
    rotary = Rotary(8, 10_000.0)

    def score(at: int, key_at: int) -> torch.Tensor:
        return (rotary(q, standing(at)) * rotary(k, standing(key_at))).sum()

    torch.testing.assert_close(score(131_077, 131_071), score(6, 0), rtol=1e-5, atol=1e-6)
    assert (score(6, 0) - score(5, 0)).abs() > 1e-3


def test_a_factor_divides_the_position() -> None:
    x = torch.randn(2, 3, 4, 8)
    far, near = standing(0, 8, 16, 24, factor=8.0), standing(0, 1, 2, 3)
    torch.testing.assert_close(Rotary(8, 100.0)(x, far), Rotary(8, 100.0)(x, near))
    assert torch.equal(Still()(x, far), x)


def test_bf16_angles_are_not_bf16() -> None:
    x = torch.randn(1, 1, 1, 8)
    at = standing(599)
    exact = Rotary(8, 10_000.0)(x.bfloat16().double(), at)
    assert (Rotary(8, 10_000.0)(x.bfloat16(), at).double() - exact).abs().max() < 0.02
