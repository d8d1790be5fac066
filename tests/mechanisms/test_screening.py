"""Properties that every implementation of screening must have, on inputs with many accepted keys."""

import math

import pytest
import torch
from torch import Tensor

from keysift.kernels.attend import attend
from keysift.kernels.positions import Positions
from keysift.kernels.weigh import weigh
from keysift.mechanisms import parts, screening

F64 = torch.float64


def near(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    """Random vectors around a common direction: about half of the pairs are accepted at r = 0.5."""
    generator = torch.Generator().manual_seed(seed)
    centre = torch.tensor([1.0, 0.6, -0.8, 0.5], dtype=F64)
    return (centre + 0.6 * torch.randn(*shape, 4, dtype=F64, generator=generator)).to(dtype)


def run(q: Tensor, k: Tensor, v: Tensor, **scalars: float) -> tuple[Tensor, Tensor]:
    return attend("screening", q, k, v, scalars=scalars, return_weights=True)


def test_inputs_have_accepted_and_refused_keys() -> None:
    _, w = run(near(1, 1, 40), near(1, 1, 40, seed=1), near(1, 1, 40), window=math.inf)
    accepted = (w[0, 0].tril() > 0).double().sum() / 820
    assert 0.2 < accepted < 0.8


def test_rotation_is_pi_times_gamma_over_the_window_for_each_step() -> None:
    """Tested far from position 0, where every rotation is the identity."""
    w = 10.0
    gamma = (math.cos(math.pi * w / 256) + 1) / 2
    q, k = near(1, 1, 1), near(1, 1, 1, seed=1)
    for at, key_at in ((1000, 997), (131_071, 131_070), (7, 0)):
        angle = math.pi * gamma / w * (at - key_at)
        a, b = q[0, 0, 0] / q.norm(), k[0, 0, 0] / k.norm()
        # Rotating q by the difference of the angles equals rotating both.
        rotated = [a[0] * math.cos(angle) - a[1] * math.sin(angle), a[0] * math.sin(angle) + a[1] * math.cos(angle)]
        cosine = rotated[0] * b[0] + rotated[1] * b[1] + a[2] * b[2] + a[3] * b[3]
        fade = (1 + math.cos(math.pi * (at - key_at) / w)) / 2
        expected = max(1 - (1 - cosine.item()) / 0.9, 0) ** 2 * fade
        got = attend(
            "screening",
            q,
            k,
            k,
            scalars={"window": w, "acceptance": 0.9},
            positions=Positions.explicit(torch.tensor([at]), torch.tensor([key_at])),
            return_weights=True,
        )[1].item()
        assert expected > 1e-3
        assert got == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("window", [2.0, 3.5, 17.0, 255.5, 257.0, math.inf])
@pytest.mark.parametrize("by", [1, 255, 256, 4095, 4096, 131_071])
def test_shifting_all_positions_changes_nothing(window: float, by: int) -> None:
    q, k, v = near(1, 1, 9, dtype=torch.float32), near(1, 1, 9, seed=1, dtype=torch.float32), near(1, 1, 9).float()
    at = torch.arange(9)
    scalars = {"window": window, "acceptance": 0.9}
    output = attend("screening", q, k, v, scalars=scalars)
    shifted = attend("screening", q, k, v, scalars=scalars, positions=Positions.explicit(at + by, at + by))
    torch.testing.assert_close(shifted, output, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("window", [0.7, 1.0, 2.0, 2.5, 4.0, 6.999])
def test_window_edge_is_decided_on_integers(window: float) -> None:
    inside = weigh("screening", [1.0] * 8, distance=list(range(8)), scalars={"window": window}) > 0
    assert inside.tolist() == [d < window for d in range(8)]


def test_relevance_of_the_own_position_is_one() -> None:
    assert weigh("screening", [1.0], distance=[0], scalars={"window": 0.7}).item() == 1


def test_full_relevance_only_at_full_similarity() -> None:
    w = weigh("screening", torch.tensor([1.0, 1 - 1e-9, 0.5 + 1e-9, 0.5, -1.0], dtype=F64))
    assert w[0] == 1
    assert 0 < w[1] < 1
    assert w[2] > 0
    assert w[3:].tolist() == [0, 0]


def test_output_is_shorter_than_one() -> None:
    out, _ = run(near(1, 1, 9), near(1, 1, 9), 100 * near(1, 1, 9), window=math.inf, acceptance=0.95)
    assert 0.9 < out.norm(dim=-1).max() < 1


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-3)], ids=["fp32", "bf16"])
def test_output_is_shorter_than_one_up_to_rounding(dtype: torch.dtype, rounding: float) -> None:
    """For a long h, tanh rounds to one, and the norm of the unit vector to slightly more than one."""
    q, v = near(1, 1, 200).to(dtype), near(1, 1, 200, seed=2).to(dtype)
    out, _ = run(q, q, v, window=math.inf, acceptance=0.95)
    longest = out.double().norm(dim=-1).max()
    assert 1 < longest < 1 + rounding


def test_scale_of_values_has_no_effect() -> None:
    q, k, v = near(1, 2, 9), near(1, 2, 9, seed=1), near(1, 2, 9, seed=2)
    torch.testing.assert_close(run(q, k, v)[0], run(q, k, 50 * v)[0])


def test_window_expansion_keeps_the_learned_rotation() -> None:
    q, k, v = near(1, 1, 9), near(1, 1, 9, seed=1), near(1, 1, 9, seed=2)
    _, plain = run(q, k, v, window=4.5, acceptance=0.9)
    _, expanded = run(q, k, v, window=4.5, acceptance=0.9, effective_window=math.inf)
    fade = screening.fade(torch.arange(9)[:, None] - torch.arange(9), torch.tensor(4.5, dtype=F64))
    torch.testing.assert_close(expanded * fade, plain)
    assert (expanded > plain).any()


def test_refusing_all_keys_gives_zero_with_zero_gradients() -> None:
    q = near(1, 1, 3).requires_grad_()
    scalars = {name: torch.tensor(x, requires_grad=True) for name, x in (("window", 4.0), ("acceptance", 0.5))}
    out = attend("screening", q, -q.detach(), near(1, 1, 3), scalars=scalars)
    out.sum().backward()
    assert (out == 0).all()
    for tensor in (q, *scalars.values()):
        assert tensor.grad is not None
        assert (tensor.grad == 0).all()


@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_zero_vectors_give_finite_outputs(which: str) -> None:
    inputs = {name: near(1, 1, 4, seed=i).float() for i, name in enumerate("qkv")}
    inputs[which][:, :, 1] = 0
    tensors = [inputs[name].requires_grad_() for name in "qkv"]
    out = attend("screening", *tensors, scalars={"acceptance": 0.9})
    out.sum().backward()
    assert out.isfinite().all()
    for tensor in tensors:
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()


@pytest.mark.parametrize(
    ("width", "acceptance", "expected"),
    [(16, 0.5, 2.0e-2), (16, 0.75, 1.7e-1), (16, 0.9, 3.5e-1), (32, 0.75, 8.0e-2), (64, 0.9, 2.1e-1)],
)
def test_fraction_of_random_keys_accepted(width: int, acceptance: float, expected: float) -> None:
    q, k = parts.unit(torch.randn(600, width)), parts.unit(torch.randn(600, width))
    fraction = (screening.trim(q @ k.mT, acceptance) > 0).float().mean().item()
    assert fraction == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("window", [3.0, 17.5, 257.0, math.inf])
@pytest.mark.parametrize("start", [0, 254, 4094, 131_068])
def test_any_chunking_equals_the_full_pass(window: float, start: int) -> None:
    q, k, v = (near(2, 2, 9, seed=seed).float() for seed in range(3))
    at = start + torch.arange(9)
    scalars = {"window": window, "acceptance": 0.9}
    whole = attend("screening", q, k, v, scalars=scalars, positions=Positions.explicit(at, at))
    parts_ = [
        attend(
            "screening",
            q[:, :, a:b],
            k[:, :, :b],
            v[:, :, :b],
            scalars=scalars,
            positions=Positions.explicit(at[a:b], at[:b]),
        )
        for a, b in ((0, 1), (1, 2), (2, 6), (6, 9))
    ]
    torch.testing.assert_close(torch.cat(parts_, dim=2), whole, rtol=1e-5, atol=1e-6)
    plain = [attend("screening", q[:, :, a:b], k[:, :, :b], v[:, :, :b], scalars=scalars) for a, b in ((0, 4), (4, 9))]
    torch.testing.assert_close(torch.cat(plain, dim=2), whole, rtol=2e-5, atol=2e-6)
