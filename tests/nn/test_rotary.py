"""RoPE rotates by the position, and is precise at large positions."""

import math

import torch

from keysift.kernels.positions import Positions
from keysift.nn.cache import AttentionContext
from keysift.nn.inference import Inference
from keysift.nn.rotary import NoRotation, RotaryEmbedding


def context_at(*at: int, factor: float = 1.0) -> AttentionContext:
    positions = torch.tensor(at)
    return AttentionContext(Positions.explicit(positions, positions), Inference(rope_factor=factor))


def test_rotation_by_hand() -> None:
    x = torch.tensor([1.0, 0.0, 0.0, 2.0]).view(1, 1, 1, 4)
    rotated = RotaryEmbedding(4, 10_000.0)(x, context_at(3)).flatten()
    a, b = 3.0, 3.0 / 100
    expected = torch.tensor([math.cos(a), -2 * math.sin(b), math.sin(a), 2 * math.cos(b)])
    torch.testing.assert_close(rotated, expected)


def test_scores_depend_on_the_distance_only_at_large_positions() -> None:
    q, k = torch.randn(2, 1, 1, 1, 8)
    rotary = RotaryEmbedding(8, 10_000.0)

    def score(at: int, key_at: int) -> torch.Tensor:
        return (rotary(q, context_at(at)) * rotary(k, context_at(key_at))).sum()

    torch.testing.assert_close(score(131_077, 131_071), score(6, 0), rtol=1e-5, atol=1e-6)
    assert (score(6, 0) - score(5, 0)).abs() > 1e-3


def test_rope_factor_divides_the_position() -> None:
    x = torch.randn(2, 3, 4, 8)
    far, near = context_at(0, 8, 16, 24, factor=8.0), context_at(0, 1, 2, 3)
    torch.testing.assert_close(RotaryEmbedding(8, 100.0)(x, far), RotaryEmbedding(8, 100.0)(x, near))
    assert torch.equal(NoRotation()(x, far), x)


def test_angles_are_precise_for_bf16_inputs() -> None:
    x = torch.randn(1, 1, 1, 8)
    at = context_at(599)
    exact = RotaryEmbedding(8, 10_000.0)(x.bfloat16().double(), at)
    assert (RotaryEmbedding(8, 10_000.0)(x.bfloat16(), at).double() - exact).abs().max() < 0.02
