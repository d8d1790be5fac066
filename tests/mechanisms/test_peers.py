"""Compare mechanisms with public implementations, rewritten row by row in plain Python; nothing is downloaded.

Installed packages (entmax, torch) are compared directly in test_oracles.py.
"""

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from keysift.kernels.attend import attend

F64 = torch.float64
T, WIDTH, OUT = 6, 4, 3
Row = Sequence[float]


def dot(a: Tensor, b: Tensor) -> float:
    return sum(x * y for x, y in zip(a.tolist(), b.tolist(), strict=True))


def softmax(x: Row) -> list[float]:
    top = max(x)
    e = [math.exp(s - top) for s in x]
    return [s / sum(e) for s in e]


def miller(x: Row) -> list[float]:
    """Flash-Attention-Softmax-N with n = 1: exp(x - max) / (n exp(-max) + sum)."""
    top = max(x)
    e = [math.exp(s - top) for s in x]
    return [s / (math.exp(-top) + sum(e)) for s in e]


def gpt_oss(x: Row) -> list[float]:
    """The sink is an extra column of the softmax, dropped afterwards."""
    return softmax([*x, 0.7])[:-1]


def softpick(x: Row) -> list[float]:
    e = [math.exp(s) - 1 for s in x]
    return [max(s, 0) / (sum(map(abs, e)) + 1e-8) for s in e]


def apple(x: Row) -> list[float]:
    """ml-sigmoid-attention, with the bias of its paper."""
    return [1 / (1 + math.exp(-(s - math.log(T)))) for s in x]


def wortsman(x: Row) -> list[float]:
    return [max(s, 0) / len(x) for s in x]


def nakanishi(x: Row) -> list[float]:
    """Scalable softmax: n^(s x) / sum n^(s x)."""
    e = [len(x) ** (0.43 * s) for s in x]
    return [s / sum(e) for s in e]


def selective(x: Row) -> list[float]:
    """selective_attention with its position term only: 1 + exp(-exp(beta)) log(i)."""
    inverse = 1 + math.exp(-math.exp(1.5)) * math.log(len(x))
    return softmax([inverse * s for s in x])


def by_bisection(x: Row, alpha: float) -> list[float]:
    low, high = (alpha - 1) * max(x) - 1, (alpha - 1) * max(x)
    for _ in range(200):
        tau = (low + high) / 2
        w = [max((alpha - 1) * s - tau, 0) ** (1 / (alpha - 1)) for s in x]
        low, high = (tau, high) if sum(w) > 1 else (low, tau)
    return w


PEERS: dict[str, tuple[str, dict[str, float], Callable[[Row], list[float]]]] = {
    "torch": ("softmax", {}, softmax),
    "Flash-Attention-Softmax-N": ("softmax1", {}, miller),
    "gpt-oss": ("softmax_sink", {"sink": 0.7}, gpt_oss),
    "softpick-attention": ("softpick", {}, softpick),
    "ml-sigmoid-attention": ("sigmoid", {"bias": -math.log(T)}, apple),
    "ReLU over L": ("relu_visible", {}, wortsman),
    "ssmax": ("ssmax", {"sharpness": 0.43}, nakanishi),
    "selective_attention": ("selective_temperature", {"token": 0.0}, selective),
    "entmax 1.5": ("entmax15", {}, lambda x: by_bisection(x, 1.5)),
    "sparsemax": ("sparsemax", {}, lambda x: by_bisection(x, 2.0)),
}


def draw(heads: int, key_heads: int, value_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(8)
    return (
        torch.randn(1, heads, T, WIDTH, dtype=F64, generator=generator),
        torch.randn(1, key_heads, T, WIDTH, dtype=F64, generator=generator),
        torch.randn(1, value_heads, T, OUT, dtype=F64, generator=generator),
    )


def causal_weights(q: Tensor, k: Tensor, weigh: Callable[[Row], list[float]]) -> list[list[float]]:
    """The causal weights of one head, row by row."""
    return [weigh([dot(q[t], k[s]) / math.sqrt(WIDTH) for s in range(t + 1)]) for t in range(T)]


def weighted_values(w: list[list[float]], v: Tensor) -> Tensor:
    return torch.stack([sum(x * v[s] for s, x in enumerate(row)) for row in w])


@pytest.mark.parametrize("peer", PEERS)
def test_agrees_with_public_implementation(peer: str) -> None:
    name, scalars, weigh = PEERS[peer]
    q, k, v = draw(2, 1, 1)
    expected = torch.stack([weighted_values(causal_weights(q[0, h], k[0, 0], weigh), v[0, 0]) for h in range(2)])
    got = attend(name, q, k, v, scalars=scalars)[0]
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def test_unilm_differential() -> None:
    """multihead_flashdiff: four attentions, (a1 - lam a2) v, RMSNorm with eps 1e-5, times 1 - lam_init."""
    q, k, v = draw(4, 2, 1)
    for h in range(2):
        a1, a2 = (weighted_values(causal_weights(q[0, 2 * h + i], k[0, i], softmax), v[0, 0]) for i in range(2))
        o = a1 - 0.3 * a2
        expected = 0.8 * o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        got = attend("differential_v1", q, k, v, scalars={"lam": 0.3})[0, h]
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def test_differential_v2() -> None:
    """Even heads minus sigmoid(lambda) times odd heads, with shared keys and values."""
    q, k, v = draw(4, 1, 1)
    lam = torch.rand(1, 2, T, dtype=F64)
    for h in range(2):
        a1, a2 = (weighted_values(causal_weights(q[0, 2 * h + i], k[0, 0], softmax), v[0, 0]) for i in range(2))
        got = attend("differential_v2", q, k, v, scalars={"lam": lam})[0, h]
        torch.testing.assert_close(got, a1 - lam[0, h, :, None] * a2, rtol=1e-10, atol=1e-10)


def test_zero_rela() -> None:
    """modules/rela.py: relu scores, RMSNorm over the concatenated heads with eps 1e-8, a sigmoid gate on its input."""
    q, k, v = draw(2, 2, 2)
    q = 1e-4 * q  # as small as at initialisation, where the eps matters
    gate = torch.rand(2, OUT, dtype=F64)
    o = torch.cat(
        [
            weighted_values(causal_weights(q[0, h], k[0, h], lambda x: [max(s, 0) for s in x]), v[0, h])
            for h in range(2)
        ],
        -1,
    )
    expected = o / (o.square().mean(-1, keepdim=True) + 1e-8).sqrt() * torch.sigmoid(gate.flatten() * o)
    got = attend("rela", q, k, v, scalars={"gate": gate})[0].transpose(0, 1).flatten(1)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def test_gated_attention() -> None:
    """Qwen's gate: elementwise sigmoid on the attention output."""
    q, k, v = draw(2, 1, 1)
    gate = torch.randn(1, 2, T, OUT, dtype=F64).sigmoid()
    for h in range(2):
        expected = gate[0, h] * weighted_values(causal_weights(q[0, h], k[0, 0], softmax), v[0, 0])
        got = attend("softmax+output_gate", q, k, v, scalars={"output_gate": gate})[0, h]
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
