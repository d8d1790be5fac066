"""Compare mechanisms with independent implementations and identities."""

import math

import pytest
import torch
from entmax import entmax15, entmax_bisect, sparsemax
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from keysift.kernels.attend import attend
from keysift.kernels.weigh import weigh
from keysift.mechanisms import MECHANISMS, entmax
from keysift.mechanisms.differential import DIFFERENTIAL_V1, DIFFERENTIAL_V2, lam_init
from keysift.mechanisms.spec import Site

F64 = torch.float64


def qkv(
    heads: int = 2, groups: int = 2, t: int = 7, s: int = 7, dtype: torch.dtype = F64
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(2, heads, t, 8, dtype=dtype),
        torch.randn(2, groups, s, 8, dtype=dtype),
        torch.randn(2, groups, s, 5, dtype=dtype),
    )


def close(got: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def test_softmax_equals_sdpa() -> None:
    q, k, v = qkv(heads=6)
    close(attend("softmax", q, k, v), sdpa(q, k, v, is_causal=True, enable_gqa=True))
    keep = torch.rand(2, 1, 7, 7) > 0.4
    close(attend("softmax", q, k, v, keep=keep, causal=False), sdpa(q, k, v, attn_mask=keep, enable_gqa=True))
    bias = torch.randn(6, 7, 7, dtype=F64)
    close(attend("softmax", q, k, v, bias=bias, causal=False), sdpa(q, k, v, attn_mask=bias, enable_gqa=True))


def test_softmax_equals_sdpa_in_a_decode_step() -> None:
    """Queries are aligned with the last keys: a single query attends to all seven keys."""
    q, k, v = qkv(t=1)
    close(attend("softmax", q, k, v), sdpa(q, k, v))


def test_differential_equals_a_difference_of_sdpa() -> None:
    q, k, v = torch.randn(2, 8, 7, 8, dtype=F64), torch.randn(2, 4, 7, 8, dtype=F64), torch.randn(2, 2, 7, 5, dtype=F64)
    # Heads 2h and 2h + 1 are the maps of head h, on the query and on the key side.
    first, second = (sdpa(q[:, i::2], k[:, i::2], v, is_causal=True, enable_gqa=True) for i in (0, 1))
    o = first - 0.3 * second
    expected = (1 - 0.2) * o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-5)
    close(attend("differential_v1", q, k, v, scalars={"lam": 0.3}), expected)
    shared = k[:, ::2]
    lam = torch.rand(2, 4, 7, dtype=F64)
    first, second = (sdpa(q[:, i::2], shared, v, is_causal=True, enable_gqa=True) for i in (0, 1))
    close(attend("differential_v2", q, shared, v, scalars={"lam": lam}), first - lam[..., None] * second)


def test_differential_v1_distinguishes_the_maps_of_grouped_keys() -> None:
    """The published reference repeats keys before pairing them, so both maps use the same key head. Ours must not."""
    q = torch.randn(1, 8, 5, 8, dtype=F64)
    k, v = torch.randn(1, 4, 5, 8, dtype=F64), torch.randn(1, 2, 5, 6, dtype=F64)
    repeated = k.repeat_interleave(2, dim=1)
    first, second = (sdpa(q[:, i::2], repeated[:, i::2], v.repeat_interleave(2, 1), is_causal=True) for i in (0, 1))
    wrong = first - 0.3 * second
    wrong = 0.8 * wrong * torch.rsqrt(wrong.square().mean(-1, keepdim=True) + 1e-5)
    assert (attend("differential_v1", q, k, v, scalars={"lam": 0.3}) - wrong).abs().max() > 0.1


def test_differential_v1_output_is_small_only_below_the_eps_of_its_norm() -> None:
    """Above the eps every output has norm (1 - lam_init) sqrt(V), even if the maps hardly differ."""
    q, k, v = torch.randn(1, 2, 9, 8, dtype=F64), torch.randn(1, 2, 9, 8, dtype=F64), torch.randn(1, 1, 9, 6, dtype=F64)
    norms = attend("differential_v1", q, k, v, scalars={"lam": 0.9}).norm(dim=-1)
    close(norms, torch.full_like(norms, 0.8 * math.sqrt(6)), tolerance=2e-3)
    for difference, length in ((1e-1, 1.0), (1e-4, 0.05), (1e-8, 1e-5)):
        similar = torch.stack((q[:, 0], q[:, 0] + difference * q[:, 1]), 1)
        output = attend("differential_v1", similar, k[:, :1].expand(1, 2, 9, 8), v, scalars={"lam": 1.0})[0, 0, -1]
        assert (output.norm() < length) == (difference < 1e-1), difference


@pytest.mark.parametrize(("layer", "expected"), list(enumerate([0.2, 0.356, 0.471, 0.556, 0.619, 0.666, 0.701, 0.727])))
def test_differential_v1_schedule(layer: int, expected: float) -> None:
    site = Site(heads=4, key_width=64, value_width=128, context=1024, layer=layer, depth=8)
    assert lam_init(site) == pytest.approx(expected, abs=5e-4)
    lam = DIFFERENTIAL_V1.scalar("lam")
    assert lam.default(site).item() == pytest.approx(lam_init(site))
    drawn = torch.stack([lam.link(lam.init(site, torch.Generator().manual_seed(i)), site) for i in range(200)])
    assert drawn.std().item() == pytest.approx(0.11, abs=0.02)


def test_differential_v2_output_vanishes_where_both_maps_agree() -> None:
    assert DIFFERENTIAL_V2.scalar("lam").link(torch.tensor(0.0), Site()) == 0.5
    w = weigh("differential_v2", [1.0, 2.0], second=[1.0, 2.0], scalars={"lam": 1 - 1e-6})
    assert w.abs().max() < 1e-6


ROWS = st.lists(st.floats(-6, 6), min_size=1, max_size=40).map(lambda row: torch.tensor(row, dtype=F64))


@given(ROWS)
def test_entmax_equals_the_entmax_package(x: Tensor) -> None:
    close(weigh("sparsemax", x), sparsemax(x))
    # The package's fp64 sort for 1.5 keeps about eight digits where the support's variance is near one.
    close(weigh("entmax15", x), entmax15(x), tolerance=1e-7)


@pytest.mark.parametrize("alpha", [1.05, 1.3, 1.5, 1.75, 2.0])
def test_bisection_equals_the_entmax_package(alpha: float) -> None:
    x = 2 * torch.randn(50, 30, dtype=F64)
    close(weigh("alpha_entmax", x, scalars={"alpha": alpha}), entmax_bisect(x, alpha, n_iter=60), tolerance=1e-9)


@given(ROWS)
def test_bisection_equals_sorting(x: Tensor) -> None:
    keep = torch.ones_like(x, dtype=torch.bool)
    x = x - x.max()
    for alpha, solve in ((2.0, entmax.solve_sparsemax), (1.5, entmax.solve_entmax15)):
        order = torch.tensor(alpha, dtype=F64)
        close(entmax.solve_by_bisection(x, keep, order), solve(x, keep, order), tolerance=1e-7)


@given(ROWS, st.floats(1.05, 2.0))
def test_entmax_refuses_far_keys(x: Tensor, alpha: float) -> None:
    w = weigh("alpha_entmax", x, scalars={"alpha": alpha})
    assert (w[x <= x.max() - 1 / (alpha - 1)] == 0).all()


def test_support_shrinks_with_alpha() -> None:
    x = torch.randn(200, 12, dtype=F64)
    sizes = [(weigh("alpha_entmax", x, scalars={"alpha": a}) > 0).sum(-1) for a in (1.2, 1.5, 2.0)]
    assert (sizes[0] >= sizes[1]).all()
    assert (sizes[1] >= sizes[2]).all()
    assert sizes[0].sum() > sizes[2].sum()


@pytest.mark.parametrize("sink", [-1.5, 0.0, 2.5])
def test_sink_equals_a_gate_on_sdpa(sink: float) -> None:
    q, k, v = qkv()
    x = (q @ k.mT * 8**-0.5).masked_fill(~torch.ones(7, 7, dtype=torch.bool).tril(), -math.inf)
    gate = torch.sigmoid(x.logsumexp(-1) - sink)
    expected = sdpa(q, k, v, is_causal=True) * gate[..., None]
    close(attend("softmax_sink", q, k, v, scalars={"sink": sink}), expected)
    close(attend("softmax+output_head_gate", q, k, v, scalars={"output_head_gate": gate}), expected)
    if sink == 0:
        close(attend("softmax1", q, k, v), expected)


def test_sink_at_minus_infinity_is_softmax() -> None:
    q, k, v = qkv()
    close(attend("softmax_sink", q, k, v, scalars={"sink": -math.inf}), attend("softmax", q, k, v))


def test_sink_survives_very_negative_rows() -> None:
    x = torch.tensor([-1000.0, -1001.0], requires_grad=True)
    w = weigh("softmax1", x)
    w.sum().backward()
    assert w.tolist() == [0, 0]
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_softpick_survives_very_negative_rows() -> None:
    x = torch.tensor([-100.0, -120.0], requires_grad=True)
    w = weigh("softpick", x)
    w.sum().backward()
    assert w.tolist() == [0, 0]
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_softpick_ignores_masked_keys() -> None:
    masked = weigh("softpick", [1.0, -2.0, 7.0], keep=[True, True, False])
    close(masked[:2], weigh("softpick", [1.0, -2.0]), tolerance=1e-6)
    assert masked[2] == 0


def test_softpick_gives_gradients_to_negative_keys_and_relu_exp_does_not() -> None:
    for name, has_gradient in (("softpick", True), ("relu_exp", False), ("relu_exp_normalised", False)):
        x = torch.tensor([1.0, -0.5], dtype=F64, requires_grad=True)
        weigh(name, x)[0].backward()
        assert x.grad is not None
        assert (x.grad[1] != 0) == has_gradient


@pytest.mark.parametrize(("gain", "c"), [(2.0, 0.5), (1.0, 1.0)])
def test_minus_constant_equals_softmax_minus_a_sum_of_values(gain: float, c: float) -> None:
    q, k, v = qkv()
    expected = gain * (sdpa(q, k, v, is_causal=True) - c * v.cumsum(2))
    close(attend("softmax_minus_constant", q, k, v, scalars={"gain": gain, "c": c}), expected)


def test_minus_uniform_is_differential_with_a_uniform_second_map() -> None:
    x = torch.randn(9, dtype=F64)
    close(
        weigh("softmax_minus_uniform", x, scalars={"lam": 0.7}),
        weigh("differential_v2", x, second=torch.zeros_like(x), scalars={"lam": 0.7}),
    )


def test_rectified_difference_without_subtraction_is_softmax() -> None:
    x, y = torch.randn(2, 9, dtype=F64)
    close(weigh("rectified_difference", x, second=y, scalars={"lam": 0.0}), weigh("softmax", x))
    assert weigh("rectified_difference", x, second=x, scalars={"lam": 1.0}).tolist() == [0] * 9


@given(ROWS, st.floats(0, 0.99))
def test_rectified_difference_below_one_keeps_mass(x: Tensor, lam: float) -> None:
    y = x.flip(0)
    assert weigh("rectified_difference", x, second=y, scalars={"lam": lam}).sum() >= 1 - lam - 1e-9


def test_sigmoid_row_sums_to_about_one_where_scores_are_zero() -> None:
    for n in (1, 10, 1000):
        got = weigh("sigmoid", torch.zeros(n), scalars={"bias": -math.log(n)})
        assert got.sum().item() == pytest.approx(n / (n + 1), rel=1e-4)


def test_ssmax_starts_as_softmax_on_average() -> None:
    from keysift.mechanisms.temperature import SSMAX

    for context, expected in ((1024, 0.168), (2048, 0.151), (4096, 0.137)):
        site = Site(context=context)
        assert SSMAX.scalar("sharpness").default(site).item() == pytest.approx(expected, abs=6e-4)


def test_ssmax_keeps_its_peak_as_keys_are_added() -> None:
    """One key at 3 among n at -2: softmax loses it as n grows, SSMax keeps it."""
    for n in (10, 1000, 100_000):
        x = torch.full((n,), -2.0)
        x[0] = 3.0
        peak = weigh("ssmax", x, scalars={"sharpness": 0.43})[0].item()
        assert peak > 0.9
    assert weigh("softmax", x)[0].item() < 0.01


@pytest.mark.parametrize("name", MECHANISMS.names())
def test_a_step_at_a_time_equals_the_full_pass(name: str) -> None:
    """An implementation that counts all keys instead of the visible keys of a row fails here."""
    mechanism = MECHANISMS.find(name)
    q, k, v = qkv(heads=2 * mechanism.maps, groups=2)
    k = torch.randn(2, 2 * mechanism.key_maps, 7, 8, dtype=F64)
    full = attend(name, q, k, v)
    for t in range(1, 8):
        step = attend(name, q[:, :, t - 1 : t], k[:, :, :t], v[:, :, :t])
        close(step, full[:, :, t - 1 : t])


def test_value_gate_scales_values_for_all_queries() -> None:
    q, k, v = qkv()
    gate = torch.rand(2, 2, 7, 5, dtype=F64)
    close(attend("softmax+value_gate", q, k, v, scalars={"value_gate": gate}), attend("softmax", q, k, gate * v))


def test_value_gate_acts_after_value_normalisation() -> None:
    q, _, v = qkv()
    gate = torch.full((2, 2, 7, 5), 1e-3, dtype=F64)
    quiet = attend("screening+value_gate", q, q, v, scalars={"value_gate": gate})
    assert 0 < quiet.norm(dim=-1).max() < 0.01


def test_rela_equals_its_formula() -> None:
    q, k, v = qkv(groups=1)
    gain, gate = torch.rand(2, 5, dtype=F64), torch.randn(2, 5, dtype=F64)
    w = (q @ k.mT * 8**-0.5).clamp_min(0).tril()
    o = (w @ v).transpose(1, 2).flatten(2)
    y = gain.flatten() * o / (o.square().mean(-1, keepdim=True) + 1e-8).sqrt() * torch.sigmoid(gate.flatten() * o)
    got = attend("rela", q, k, v, scalars={"gain": gain, "gate": gate}).transpose(1, 2).flatten(2)
    close(got, y)


def test_straight_through_gate_gives_gradients_to_the_second_map() -> None:
    from keysift.mechanisms.difference import heaviside_gate

    for surrogate, has_gradient in ((None, False), (0.1, True)):
        mechanism = heaviside_gate(surrogate_temperature=surrogate)
        x, y = torch.randn(2, 6, dtype=F64), torch.randn(2, 6, dtype=F64, requires_grad=True)
        lam = torch.tensor(0.5, dtype=F64, requires_grad=True)
        weigh(mechanism, x.requires_grad_(), second=y, scalars={"lam": lam}).square().sum().backward()
        assert x.grad is not None
        assert x.grad.abs().max() > 0
        for grad in (y.grad, lam.grad):
            assert (grad is not None and bool(grad.abs().max() > 0)) == has_gradient


def test_straight_through_gradient_equals_the_sigmoid_gradient() -> None:
    from keysift.mechanisms.difference import _StraightThrough

    x = torch.randn(20, dtype=F64, requires_grad=True)
    _StraightThrough.apply(x, 0.3).sum().backward()
    s = torch.sigmoid(x.detach() / 0.3)
    assert x.grad is not None
    close(x.grad, s * (1 - s) / 0.3)
