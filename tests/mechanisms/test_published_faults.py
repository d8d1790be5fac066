"""Faults of published implementations of these mechanisms, each with the case that shows it."""

import math

import pytest
import torch
from torch import Tensor, nn

from keysift.kernels.attend import attend
from keysift.kernels.weigh import weigh

BACKENDS_OF_TRA = ("sums_cpu", "by_rows", "dense")


def draw(queries: int, keys: int, *, maps: int = 1, width: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 2 * maps, n, width, generator=random) for n in (queries, keys))
    return q, k, torch.randn(2, 2, keys, 4, generator=random)


@pytest.mark.parametrize("backend", BACKENDS_OF_TRA)
def test_hidden_keys_have_no_weight_below_a_negative_threshold(backend: str) -> None:
    """snap-research/TDA scores hidden keys 0, which exceeds a threshold of beta < 0."""
    q, k, v = draw(9, 9)
    before = attend("tra", q, k, v, scalars={"beta": -0.7}, backend=backend)
    k[:, :, 5:], v[:, :, 5:] = 3.0, 100.0
    after = attend("tra", q, k, v, scalars={"beta": -0.7}, backend=backend)
    assert torch.equal(before[:, :, :5], after[:, :, :5])
    assert not torch.equal(before[:, :, 5:], after[:, :, 5:])
    masked = attend("tra", q, k, v, scalars={"beta": -0.7}, keep=torch.arange(9) < 5, return_weights=True)[1]
    assert (masked[..., 5:] == 0).all()


@pytest.mark.parametrize("backend", BACKENDS_OF_TRA)
@pytest.mark.parametrize("name", ["tra", "tda"])
def test_the_factor_of_the_threshold_has_a_gradient(name: str, backend: str) -> None:
    """snap-research/TDA reads beta with .item()."""
    q, k, v = draw(40, 40, maps=2 if name == "tda" else 1)
    step = 1e-3

    def total(beta: Tensor) -> Tensor:
        return attend(name, q, k, v, scalars={"beta": beta}, backend=backend).square().sum()

    beta = torch.tensor([0.4, 0.6], requires_grad=True)
    (gradient,) = torch.autograd.grad(total(beta), beta)
    for head in range(2):
        moved = [total(beta.detach() + sign * step * torch.eye(2)[head]).item() for sign in (1, -1)]
        assert gradient[head].item() == pytest.approx((moved[0] - moved[1]) / (2 * step), rel=0.05)
        assert gradient[head] != 0


@pytest.mark.parametrize("name", ["tra", "tda", "elastic_softmax", "clipped_softmax", "lssar", "asentmax"])
def test_a_cached_step_counts_all_visible_keys(name: str) -> None:
    """snap-research/TDA and flash-lazy-attention take the row's index in the call: a step of one query sees key 0."""
    q, k, v = draw(1, 40, maps=2 if name == "tda" else 1)
    many = torch.cat((torch.zeros_like(q).expand(-1, -1, 39, -1), q), dim=2)
    scalars = {"clipped_softmax": {"gamma": -0.02}, "tra": {"beta": 0.3}, "tda": {"beta": 0.3}}.get(name, {})
    whole = attend(name, many, k, v, scalars=scalars)
    step = attend(name, q, k, v, scalars=scalars)
    torch.testing.assert_close(step, whole[:, :, -1:])
    assert step.abs().amax() > 1e-3


@pytest.mark.parametrize("name", ["tra", "elastic_softmax", "lssar", "asentmax"])
def test_padding_does_not_count(name: str) -> None:
    """deep-spin/asentmax takes log of the position, which counts padding on the left."""
    q, k, v = draw(12, 12)
    keep = torch.arange(12) >= 5
    torch.testing.assert_close(
        attend(name, q, k, v, keep=keep)[:, :, 5:], attend(name, q[:, :, 5:], k[:, :, 5:], v[:, :, 5:])
    )


def test_elastic_softmax_of_one_key_is_zero_with_zero_gradients() -> None:
    """At tau = -1 a row of one key, and a uniform row, is exactly 0 and passes no gradient."""
    for scores in ([0.3], [0.3] * 4):
        x = torch.tensor(scores, requires_grad=True)
        w = weigh("elastic_softmax", x, scalars={"tau": -1.0})
        w.sum().backward()
        assert w.tolist() == [0.0] * len(scores)
        assert x.grad is not None
        assert x.grad.tolist() == [0.0] * len(scores)


@pytest.mark.parametrize("tokens", [4, 20])
def test_scalars_are_not_rounded_to_the_dtype_of_the_inputs(tokens: int) -> None:
    """flash-lazy-attention rounds tau to bf16, in which -0.999 is -1 and equal scores get no weight."""
    q = torch.zeros(1, 1, tokens, 8, dtype=torch.bfloat16)
    out = attend("elastic_softmax", q, q, torch.ones_like(q), scalars={"tau": -0.999})
    torch.testing.assert_close(out.float(), torch.full_like(out, 0.001).float(), rtol=0.02, atol=0)


def test_elastic_softmax_is_a_rectified_difference_with_a_constant_second_map() -> None:
    q, k, v = draw(30, 30)
    with_zeros = [torch.stack((x, torch.zeros_like(x)), dim=2).flatten(1, 2) for x in (q, k)]
    elastic = attend("elastic_softmax", q, k, v, scalars={"tau": -0.8})
    difference = attend("rectified_difference", *with_zeros, v, scalars={"lam": 0.8}, backend="dense")
    torch.testing.assert_close(elastic, difference)


def test_clipped_softmax_never_reaches_its_upper_clip() -> None:
    x = torch.tensor([[9.0, 1.0, -3.0], [0.2, 0.1, 0.0]], dtype=torch.float64)
    p = x.softmax(-1)
    torch.testing.assert_close(weigh("clipped_softmax", x, scalars={"gamma": -0.2}), (1.2 * p - 0.2).clip(0, 1))


@pytest.mark.parametrize("backend", ["sdpa", "by_rows", "dense"])
def test_null_value_is_the_bias_of_torchs_keys_and_values(backend: str) -> None:
    """torch.nn.MultiheadAttention(add_bias_kv=True) appends a learned key and value."""
    torch.manual_seed(0)
    peer = nn.MultiheadAttention(8, 2, bias=False, add_bias_kv=True, batch_first=True)
    x = torch.randn(3, 5, 8)
    visible = torch.ones(5, 5, dtype=torch.bool).tril()
    peer_out, _ = peer(x, x, x, attn_mask=~visible)
    q, k, v = (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in (x @ peer.in_proj_weight.T).chunk(3, dim=-1))
    null_key, null_value = (each.view(2, 4) for each in (peer.bias_k, peer.bias_v))
    logit = torch.einsum("bhtk,hk->bht", q, null_key) / 2
    out = attend("null_value", q, k, v, scalars={"null_logit": logit, "null_value": null_value}, backend=backend)
    torch.testing.assert_close(peer.out_proj(out.transpose(1, 2).flatten(2)), peer_out)


def test_lssar_gives_equal_keys_nothing_and_short_rows_their_shares() -> None:
    """The formula is discontinuous at equal scores of more than three keys, and rounding must not choose a side."""
    for count in (4, 7, 33):
        assert weigh("lssar", [0.1] * count).tolist() == [0.0] * count
    for count in (1, 2, 3):
        assert weigh("lssar", [0.1] * count).tolist() == pytest.approx([1 / count] * count)


def test_lssar_does_not_underflow() -> None:
    """The 15th power of a small excess: divided by the largest before the power, not after it."""
    w = weigh("lssar", [0.011, 0.01, 0.01, 0.01], scalars={"width": 1.001})
    assert w[0] == 1
    assert math.isfinite(w.sum().item())
