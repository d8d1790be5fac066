"""attend: shapes, masks, grouped heads, alignment, precision and the choice of backend."""

import math

import pytest
import torch
from torch import Tensor

import keysift
from keysift.kernels.attend import Choice, attend, explain, force_backend
from keysift.kernels.call import make_call
from keysift.kernels.positions import Positions
from keysift.mechanisms import MECHANISMS, find
from keysift.mechanisms.spec import Mechanism
from tests.refusals import refuses


def inputs(mechanism: Mechanism, t: int, s: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs around one direction, so that screening accepts many keys."""
    centre = torch.tensor([1.0, 0.6, -0.8, 0.5])
    q = centre + 0.6 * torch.randn(2, 4 * mechanism.maps, t, 4)
    k = centre + 0.6 * torch.randn(2, 2 * mechanism.key_maps, s, 4)
    return q.to(dtype), k.to(dtype), torch.randn(2, 2, s, 5).to(dtype)


every = pytest.mark.parametrize("mechanism", list(MECHANISMS), ids=lambda mechanism: mechanism.name)


@every
def test_shapes_and_grouped_heads(mechanism: Mechanism) -> None:
    q, k, v = inputs(mechanism, t=3, s=6)
    out, w = attend(mechanism, q, k, v, return_weights=True)
    assert out.shape == (2, 4, 3, 5)
    assert w.shape == (2, 4, 3, 6)
    maps = mechanism.key_maps
    repeated = [x.view(2, 2, -1, 6, x.shape[-1]).repeat_interleave(2, 1).flatten(1, 2) for x in (k, v)]
    assert repeated[0].shape[1] == 4 * maps
    torch.testing.assert_close(attend(mechanism, q, *repeated), out)


@every
def test_keep_equals_removing_keys(mechanism: Mechanism) -> None:
    q, k, v = inputs(mechanism, t=3, s=6)
    keep = torch.tensor([True, False, True, True, False, True])
    at, key_at = torch.arange(5, 8), torch.arange(6)
    masked = attend(mechanism, q, k, v, keep=keep, positions=Positions.explicit(at, key_at))
    shorter = attend(mechanism, q, k[:, :, keep], v[:, :, keep], positions=Positions.explicit(at, key_at[keep]))
    torch.testing.assert_close(masked, shorter, rtol=1e-5, atol=1e-6)


@every
def test_bias_of_minus_infinity_equals_keep(mechanism: Mechanism) -> None:
    q, k, v = inputs(mechanism, t=4, s=6)
    keep = torch.rand(2, 4, 4, 6) > 0.3
    bias = torch.where(keep, 0.0, -math.inf)
    torch.testing.assert_close(attend(mechanism, q, k, v, bias=bias), attend(mechanism, q, k, v, keep=keep))


def test_bias_is_added_after_the_scale() -> None:
    q, k, v = inputs(MECHANISMS.find("softmax"), t=4, s=4)
    bias = torch.randn(4, 4, 4)
    scores = 0.25 * q @ k.repeat_interleave(2, 1).mT + bias
    _, w = attend("softmax", q, k, v, bias=bias, scale=0.25, causal=False, return_weights=True)
    torch.testing.assert_close(w, scores.softmax(-1))


def test_bias_reaches_both_maps() -> None:
    mechanism = MECHANISMS.find("differential_v2")
    q, k, v = inputs(mechanism, t=4, s=4)
    bias = torch.randn(2, 4, 4, 4)
    _, w = attend(mechanism, q, k, v, bias=bias, causal=False, return_weights=True)
    x = 0.5 * q @ k.repeat_interleave(4, 1).mT + bias.repeat_interleave(2, 1)
    torch.testing.assert_close(w, x[:, ::2].softmax(-1) - 0.5 * x[:, 1::2].softmax(-1))


@every
def test_last_query_is_aligned_with_the_last_key(mechanism: Mechanism) -> None:
    """With positions aligned at the start, one query over six keys would attend to the first key only."""
    q, k, v = inputs(mechanism, t=6, s=6)
    torch.testing.assert_close(
        attend(mechanism, q[:, :, 4:], k, v), attend(mechanism, q, k, v)[:, :, 4:], rtol=1e-5, atol=1e-6
    )


@every
def test_no_leak_from_the_future_in_bf16_at_600(mechanism: Mechanism) -> None:
    """bf16 rounds 598 and 599 to the same number: with positions in bf16, row 598 would attend to key 599."""
    q, k, v = inputs(mechanism, t=600, s=600, dtype=torch.bfloat16)
    q, k, v = q[:1], k[:1], v[:1]
    accepting = {"window": math.inf, "beta": 0.0, "gamma": 0.0}  # at 600 keys their initial values refuse every key
    wide = {s.name: accepting[s.name] for s in mechanism.scalars if s.name in accepting}
    before = attend(mechanism, q, k, v, scalars=wide)
    _, w = attend(mechanism, q, k, v, scalars=wide, return_weights=True)
    assert (w[:, :, 599, 599] != 0).any() or (w[:, :, 599] != 0).float().mean() > 0.01, "no key has a weight"
    k, v = k.clone(), v.clone()
    newest = 599 if mechanism.own_key else 598  # of the last query; no earlier one sees it
    k[:, :, newest], v[:, :, newest] = 4 * q[:, : k.shape[1], 599], 50.0
    after = attend(mechanism, q, k, v, scalars=wide)
    assert torch.equal(before[:, :, :599], after[:, :, :599])
    if mechanism.name != "stick_breaking_rest":  # after 599 older keys, nothing is left for the own one
        assert not torch.equal(before[:, :, 599], after[:, :, 599])


@every
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_half_precision_computes_in_fp32(mechanism: Mechanism, dtype: torch.dtype) -> None:
    """The result is that of fp32 on the rounded inputs, rounded once at the end."""
    q, k, v = inputs(mechanism, t=9, s=9, dtype=dtype)
    out = attend(mechanism, q, k, v)
    assert out.dtype == dtype
    assert torch.equal(out, attend(mechanism, q.float(), k.float(), v.float()).to(dtype))


@every
def test_explicit_positions(mechanism: Mechanism) -> None:
    q, k, v = inputs(mechanism, t=3, s=6)
    at, key_at = torch.arange(3, 6), torch.arange(6)
    explicit = attend(mechanism, q, k, v, positions=Positions.explicit(at, key_at))
    torch.testing.assert_close(explicit, attend(mechanism, q, k, v), rtol=1e-5, atol=1e-6)
    counted = attend(mechanism, q, k, v, positions=Positions.counted(3, 6))
    assert torch.equal(counted, attend(mechanism, q, k, v))
    # Keys in any order, with positions per batch row and per head.
    shuffled = torch.randperm(6)
    positions = Positions.explicit(at.expand(2, 1, 3), shuffled.expand(2, 4, 6))
    actual = attend(mechanism, q, k[:, :, shuffled], v[:, :, shuffled], positions=positions)
    torch.testing.assert_close(actual, attend(mechanism, q, k, v), rtol=1e-5, atol=1e-6)


def test_queries_before_every_key_get_zeros() -> None:
    q, k, v = inputs(MECHANISMS.find("softmax"), t=5, s=2)
    assert (attend("softmax", q, k, v)[:, :, :3] == 0).all()


def test_scalars_change_the_output() -> None:
    for mechanism in MECHANISMS:
        q, k, v = inputs(mechanism, t=9, s=9)
        for scalar in mechanism.scalars:
            if scalar.follows is None and len(scalar.probes) > 1:
                first, last = (
                    attend(mechanism, q, k, v, scalars={scalar.name: x})
                    for x in scalar.probes[:: len(scalar.probes) - 1]
                )
                assert not torch.equal(first, last), f"{mechanism.name}: {scalar.name} changes nothing"


def test_explain_reports_backend_and_reasons() -> None:
    q, k, v = inputs(MECHANISMS.find("softmax"), t=3, s=3)
    choice = explain("softmax", q, k, v)
    assert isinstance(choice, Choice)
    assert choice.backend == "sdpa"
    assert list(choice.declined) == ["screening_cpu", "decayed_cpu"]
    assert all(choice.declined.values())
    assert explain("softmax", q, k, v, backend="dense") == Choice("dense", {})


@pytest.mark.slow
def test_compiles() -> None:
    q, k, v = inputs(MECHANISMS.find("softmax"), t=5, s=5)
    for name in ("softmax", "screening", "sigmoid"):
        compiled = torch.compile(lambda q, k, v, name=name: attend(name, q, k, v), fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(q, k, v), attend(name, q, k, v))


def test_public_names_exist() -> None:
    for name in keysift.__all__:
        assert getattr(keysift, name) is not None
    assert set(keysift.__all__) <= set(dir(keysift))


def test_force_backend_replaces_auto() -> None:
    q, k, v = inputs(MECHANISMS.find("screening"), t=5, s=5)
    first = explain("screening", q, k, v).backend
    with force_backend("dense"):
        assert explain("screening", q, k, v) == Choice("dense", {})
        with force_backend("blockwise"):
            assert explain("screening", q, k, v).backend == "blockwise"
            assert explain("screening", q, k, v, backend="dense").backend == "dense"
        assert explain("screening", q, k, v).backend == "dense"
    assert explain("screening", q, k, v).backend == first


def test_force_backend_does_not_fall_back() -> None:
    q, k, v = inputs(MECHANISMS.find("softmax"), t=5, s=5)
    with (
        force_backend("blockwise"),
        refuses("no allowed backend can run this call .blockwise: softmax is not pointwise"),
    ):
        attend("softmax", q, k, v)
    with refuses("no backend is called 'dens'"), force_backend("dens"):
        attend("softmax", q, k, v)
    assert explain("softmax", q, k, v).backend == "sdpa"


def test_force_backend_recompiles_a_graph() -> None:
    q, k, v = inputs(MECHANISMS.find("screening"), t=5, s=5)
    offset_by_backend = {"dense": 1.0, "blockwise": 2.0}
    compiled = torch.compile(
        lambda x: x + offset_by_backend[explain("screening", q, k, v).backend], fullgraph=True, backend="eager"
    )
    for name, added in offset_by_backend.items():
        with force_backend(name):
            assert compiled(torch.zeros(1)).item() == added


def test_repeated_calls_share_checks_but_not_values() -> None:
    """The table of earlier calls must not carry over a mechanism, a device, a dtype or scalars of another call."""
    q, k, v = inputs(find("screening"), t=6, s=6)
    with torch.inference_mode():
        first = attend("screening", q, k, v)
    narrow = attend("screening", q, k, v, scalars={"window": 2.0})
    assert not torch.equal(first, narrow)
    torch.testing.assert_close(attend("screening", q, k, v), first, rtol=0, atol=0)
    # Default scalars of a call in inference mode must not be inference tensors: gradients would be refused.
    leaf = q.clone().requires_grad_()
    for backend in ("dense", "auto"):
        attend("screening", leaf, k, v, backend=backend).sum().backward()
    for name in ("screening", "sigmoid", "softmax"):
        assert list(make_call(find(name), q, k, v).scalars) == [scalar.name for scalar in find(name).scalars]
    assert make_call(find("screening"), q.double(), k.double(), v.double()).scalars["window"].dtype == torch.float64
    with refuses("q and k must agree in width"):
        attend("screening", q, k[..., :3], v)
    with refuses("share one floating-point type"):
        attend("screening", q, k.double(), v)
