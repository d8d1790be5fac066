"""RoPE rotates by the position, and is precise at large positions."""

import math

import pytest
import torch

from keysift.kernels.positions import Positions
from keysift.nn.cache import AttentionContext
from keysift.nn.inference import Inference
from keysift.nn.rotary import NoRotation, RotaryEmbedding
from tests.refusals import refuses


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


def test_partial_and_proportional_frequencies() -> None:
    """Half of 8 channels: partial RoPE has pairs (0, 2), (1, 3), p-RoPE pairs (0, 4), (1, 5)."""
    x = torch.randn(1, 1, 1, 8)
    partial = RotaryEmbedding(8, 10_000.0, share=0.5)
    assert partial.as_trained[0] == pytest.approx([1, 0.01])
    rotated = partial(x, context_at(3))
    torch.testing.assert_close(rotated[..., :4], RotaryEmbedding(4, 10_000.0)(x[..., :4], context_at(3)))
    assert torch.equal(rotated[..., 4:], x[..., 4:])
    proportional = RotaryEmbedding(8, 10_000.0, share=0.5, proportional=True)
    assert proportional.as_trained[0] == pytest.approx([1, 0.1, 0, 0])
    rotated, whole = proportional(x, context_at(3)), RotaryEmbedding(8, 10_000.0)(x, context_at(3))
    moved, still = [0, 1, 4, 5], [2, 3, 6, 7]
    assert torch.equal(rotated[..., still], x[..., still])
    torch.testing.assert_close(rotated[..., moved], whole[..., moved])
    with refuses("RoPE rotates pairs of channels, got 0.3 of a key width of 8"):
        RotaryEmbedding(8, 10_000.0, share=0.3)


def test_scaling_at_inference_equals_scaling_in_the_model() -> None:
    x, at = torch.randn(1, 2, 3, 8), torch.tensor([0, 700, 9000])
    inference = Inference(rope_scaling="yarn:factor=4,original=64")
    context = AttentionContext(Positions.explicit(at, at), inference)
    scaled = RotaryEmbedding(8, 100.0, "yarn:factor=4,original=64")
    assert torch.equal(RotaryEmbedding(8, 100.0)(x, context), scaled(x, context_at(0, 700, 9000)))
