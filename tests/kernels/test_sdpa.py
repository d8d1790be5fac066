"""The sdpa backend agrees with the definition, gradients included, for every kind of positions."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from keysift.kernels import regions
from keysift.kernels.attend import attend, explain
from keysift.kernels.call import make_call
from keysift.kernels.eager import softmax_operators
from keysift.kernels.positions import Positions
from keysift.mechanisms import MECHANISMS, find
from keysift.mechanisms.rules import Softmax
from keysift.mechanisms.spec import Mechanism
from keysift.verify.agreement import check_agreement, draw_inputs
from tests.kernels import checks
from tests.kernels.checks import largest_saved
from tests.refusals import refuses
from tests.representatives import slow_unless_representative

# Forgetting attention is causal only and takes no masks: tests/kernels/test_forgetting.py.
FAMILY = [m for m in MECHANISMS if isinstance(m.rule, Softmax) and not m.causal_only]
FAMILY += [find("differential_v2+output_gate"), find("softmax_sink+value_gate")]
every = pytest.mark.parametrize("mechanism", slow_unless_representative(FAMILY))


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "BLOCK", 16)


agrees = partial(checks.agrees, "sdpa")


@every
@pytest.mark.parametrize(("t", "s"), [(1, 1), (1, 40), (5, 40), (40, 33), (63, 63), (200, 200)])
def test_lengths_and_caches(mechanism: Mechanism, t: int, s: int) -> None:
    agrees(mechanism, t, s)


@every
def test_positions(mechanism: Mechanism) -> None:
    agrees(mechanism, 20, 33, causal=False)
    agrees(mechanism, 20, 20, positions=Positions.packed([[3, 9, 8], [20]]))
    agrees(mechanism, 20, 20, positions=Positions.padded([3, 0], 20))
    agrees(mechanism, 4, 30, positions=Positions.counted(4, start=26).with_cached_keys([0, 0], [30, 30], 30))
    agrees(
        mechanism, 4, 30, positions=Positions.padded([1, 0], 4, start=[11, 26]).with_cached_keys([0, 0], [14, 30], 30)
    )
    at, key_at = torch.randint(0, 90, (2, 1, 20)), torch.randint(0, 60, (2, 4, 40))
    agrees(mechanism, 20, 40, positions=Positions.explicit(at, key_at))


@every
def test_masks_and_biases(mechanism: Mechanism) -> None:
    agrees(mechanism, 20, 40, keep=torch.rand(2, 1, 20, 40) > 0.3)
    agrees(mechanism, 20, 40, keep=torch.rand(2, 4, 20, 40) > 0.3, causal=False)
    agrees(mechanism, 20, 40, keep=torch.rand(40) > 0.3)
    bias = torch.randn(4, 20, 40).masked_fill(torch.rand(4, 20, 40) > 0.8, -math.inf)
    rule = mechanism.rule
    assert isinstance(rule, Softmax)
    if rule.factor is None:
        agrees(mechanism, 20, 40, bias=bias)
        return
    q, k, v = (draw_inputs(mechanism, 20, 40)[name].float() for name in "qkv")
    with refuses("scales the bias too, and torch's kernel has no gradient for a bias"):
        attend(mechanism, q, k, v, bias=bias, backend="sdpa")


@every
def test_queries_without_visible_keys(mechanism: Mechanism) -> None:
    keep = torch.rand(2, 1, 20, 40) > 0.3
    keep[:, :, 7] = False
    fast = agrees(mechanism, 20, 40, keep=keep)
    assert (fast["output"][:, :, 7] == 0).all()
    assert (fast["gradient of q"][:, :, 7] == 0).all()
    fast = agrees(mechanism, 20, 9)
    assert (fast["output"][:, :, :11] == 0).all()


@pytest.mark.parametrize("sink", [-math.inf, -200.0, 0.0, 90.0])
def test_sinks_of_every_size(sink: float) -> None:
    mechanism = find("softmax_sink")
    tensors = draw_inputs(mechanism, 40, 40) | {"sink": torch.full((4,), sink, dtype=torch.float64)}
    check_agreement(mechanism, tensors, backend="sdpa")


@pytest.mark.parametrize("widths", [(4, 9), (9, 4)])
def test_keys_and_values_of_different_width(widths: tuple[int, int]) -> None:
    q, k = torch.randn(2, 4, 30, widths[0]), torch.randn(2, 2, 30, widths[0])
    v = torch.randn(2, 2, 30, widths[1])
    torch.testing.assert_close(attend("softmax", q, k, v), attend("softmax", q, k, v, backend="dense"))


@pytest.fixture
def _without_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device, or with a torch version, without the operator: the public function runs."""
    monkeypatch.setattr(softmax_operators, "_forward_op", None)


WITHOUT_SINKS = ["softmax", "differential_v1", "softmax_minus_uniform", "ssmax", "softmax+value_gate"]


@pytest.mark.usefixtures("_without_the_operator")
@pytest.mark.parametrize("name", WITHOUT_SINKS)
def test_the_public_function_agrees(name: str) -> None:
    mechanism = find(name)
    for t, s in ((1, 1), (1, 40), (5, 40), (40, 33), (40, 40)):
        agrees(mechanism, t, s)
    agrees(mechanism, 20, 33, causal=False)
    agrees(mechanism, 20, 20, positions=Positions.packed([[3, 9, 8], [20]]))
    keep = torch.rand(2, 1, 20, 40) > 0.3
    keep[:, :, 7] = False
    fast = agrees(mechanism, 20, 40, keep=keep)
    assert (fast["output"][:, :, 7] == 0).all()
    assert (fast["gradient of q"][:, :, 7] == 0).all()


@pytest.mark.usefixtures("_without_the_operator")
def test_the_public_function_has_no_sinks() -> None:
    q = torch.randn(1, 1, 8, 4)
    assert explain("softmax", q, q, q).backend == "sdpa"
    message = "a sink needs the logarithm of the denominator, which only torch's CPU operator returns"
    assert explain("softmax_sink", q, q, q).declined["sdpa"] == message


def test_is_chosen_or_gives_a_reason() -> None:
    q = torch.randn(1, 1, 8, 4)
    assert explain("softmax", q, q, q).backend == "sdpa"
    assert explain("softmax", q, q, q, return_weights=True).declined["sdpa"] == "it never forms the weights"
    assert explain("sigmoid", q, q, q).declined["sdpa"] == "it computes softmax attention, and sigmoid is not a softmax"
    bias = torch.zeros(8, 8, requires_grad=True)
    assert explain("softmax", q, q, q, bias=bias).declined["sdpa"] == "torch's kernel has no gradient for a bias"
    meta = q.to("meta")
    assert explain("softmax", meta, meta, meta).declined["sdpa"] == "the tensors are on meta"


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_under_function_transforms_another_backend_runs() -> None:
    q = torch.randn(3, 1, 2, 8, 4, dtype=torch.float64)
    out = torch.func.vmap(lambda x: attend("softmax", x, x, x))(q)
    torch.testing.assert_close(out, torch.stack([attend("softmax", x, x, x) for x in q]))
    _, tangent = torch.func.jvp(lambda x: attend("softmax", x, x, x), (q[0],), (torch.ones_like(q[0]),))
    assert tangent.abs().max() > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "softmax_sink", "differential_v2", "softmax_minus_uniform"])
def test_compiles(name: str) -> None:
    mechanism = find(name)
    tensors = {n: x.float() for n, x in draw_inputs(mechanism, 20, 20).items()}
    scalars = {n: x for n, x in tensors.items() if n not in "qkv"}

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(mechanism, q, k, v, scalars=scalars, backend="sdpa").square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for run in (loss, compiled):
        leaves = [tensors[n].clone().requires_grad_() for n in "qkv"]
        grads = torch.autograd.grad(run(*leaves), leaves)
        if run is loss:
            expected = grads
    torch.testing.assert_close(grads, expected)


def test_operators_pass_opcheck() -> None:
    q, k, v = (torch.randn(1, 2, 6, 4, requires_grad=True) for _ in range(3))
    sink = torch.zeros(1, 2, 1, requires_grad=True)
    factor = torch.ones(1, 2, 6, 1, requires_grad=True)
    settings = dict.fromkeys(("sink", "rest", "factor", "segments", "mask", "slopes"))
    common = {**settings, "offset": 0, "causal": True, "window": 0, "kept": 0, "scale": 0.5}
    for changes in (
        {"sink": sink},
        {"mask": torch.zeros(1, 1, 6, 6), "causal": False},
        {"sink": sink, "window": 2, "kept": 1},
        {"sink": sink, "slopes": torch.ones(2), "window": 2},
        {"factor": factor, "window": 2, "kept": 1},
        {"sink": sink, "rest": torch.randn(2, 1, 4, requires_grad=True)},
    ):
        torch.library.opcheck(softmax_operators._softmax_attention, (q, k, v), {**common, **changes})


def test_no_saved_tensor_grows_with_queries_times_keys() -> None:
    q = torch.randn(1, 1, 640, 4, requires_grad=True)
    for name in ("softmax", "softmax_sink", "softmax_minus_uniform", "ssmax"):
        assert largest_saved(lambda name=name: attend(name, q, q, q, backend="sdpa")) <= 640 * 4  # type: ignore[misc]


def excess_pairs(positions: Positions, causal: bool, batch: int, t: int, s: int) -> Tensor:
    """Number of regions that cover each pair, minus one if the pair is visible."""
    q, k = torch.zeros(batch, 1, t, 1), torch.zeros(batch, 1, s, 1)
    call = make_call(find("softmax"), q, k, k, positions=positions, causal=causal)
    covered = torch.zeros(batch, 1, t, s, dtype=torch.int64)
    all_regions = regions.regions_of(call)
    assert all_regions is not None
    for region in all_regions:
        shape = (region.queries.stop - region.queries.start, region.keys.stop - region.keys.start)
        block = torch.ones(shape, dtype=torch.int64)
        covered[region.rows, :, region.queries, region.keys] += block.tril() if region.causal else block
    keep = call.visible().keep_BHTS.expand(batch, 1, t, s)
    torch.testing.assert_close(regions.visible_counts(call).expand(batch, 1, t, 1), keep.sum(-1, keepdim=True))
    return covered - keep.long()


@pytest.mark.parametrize("start", range(-9, 12))
@pytest.mark.parametrize(("t", "s"), [(1, 1), (4, 7), (7, 4), (5, 5)])
def test_regions_cover_every_visible_pair_once(start: int, t: int, s: int) -> None:
    for causal in (True, False):
        positions = Positions(queries=t, keys=s, first=start, key_first=0)
        assert (excess_pairs(positions, causal, 1, t, s) == 0).all()
    assert (excess_pairs(Positions.packed([[3, 1, 4], [8], [2, 2]], 9), True, 3, 9, 9) == 0).all()


@pytest.mark.parametrize("needs_grad", [False, True])
def test_memory_layout_does_not_matter(needs_grad: bool) -> None:
    """After torch.cat of two columns, or a transpose, the last axis is not contiguous."""
    plain = [torch.randn(1, 4, 6, 2, dtype=torch.float64) for _ in range(3)]
    strided = [x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2).requires_grad_(needs_grad) for x in plain]
    assert all(x.stride(-1) != 1 for x in strided)
    out = attend("softmax", *strided, backend="sdpa")
    torch.testing.assert_close(out, attend("softmax", *plain, backend="dense"))
    if needs_grad:
        leaves = [x.requires_grad_() for x in plain]
        expected = torch.autograd.grad(attend("softmax", *leaves, backend="dense").sin().sum(), leaves)
        torch.testing.assert_close(torch.autograd.grad(out.sin().sum(), strided), expected)


@pytest.mark.parametrize("scale", [0.0, -0.125, -1.0])
def test_scales_of_zero_and_below(scale: float) -> None:
    """torch's causal kernel multiplies masked scores, -inf, by the scale."""
    q, k, v = torch.randn(3, 1, 2, 40, 8, generator=torch.Generator().manual_seed(0)).double()
    for options in ({}, {"causal": False}, {"keep": torch.rand(40, 40) > 0.3}):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        sides = [attend("softmax", *leaves, scale=scale, backend=backend, **options) for backend in ("sdpa", "dense")]
        torch.testing.assert_close(*sides)
        grads = [torch.autograd.grad(out.square().sum(), leaves) for out in sides]
        torch.testing.assert_close(*grads)


def test_second_derivatives_are_refused() -> None:
    q, k, v = torch.randn(3, 1, 2, 6, 8, requires_grad=True)
    out = attend("softmax", q, k, v, backend="sdpa")
    (dq,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with refuses("this backend has no second derivatives; pass backend='dense'"):
        torch.autograd.grad(dq.sum(), q)


@pytest.mark.parametrize("causal", [True, False])
def test_gradients_of_temperatures_at_large_scores(causal: bool) -> None:
    """No less exact than the definition in fp32: scores of some hundreds, one weight near 1 in most rows."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (10 * torch.randn(1, 2, 256, 256, generator=generator) for _ in range(3))
    output_gradient = torch.randn(1, 2, 256, 256, generator=generator)
    scalars = {"growth": torch.full((2,), 0.5), "token": torch.zeros(1, 2, 256)}

    def gradients(backend: str, dtype: torch.dtype) -> list[Tensor]:
        leaves = {name: x.to(dtype).requires_grad_() for name, x in scalars.items()}
        tensors = (x.to(dtype) for x in (q, k, v))
        out = attend("selective_temperature", *tensors, scalars=leaves, causal=causal, backend=backend)
        return [x.double() for x in torch.autograd.grad(out, leaves.values(), output_gradient.to(dtype))]

    exact = gradients("dense", torch.float64)
    for name, ours, dense, expected in zip(
        scalars, gradients("sdpa", torch.float32), gradients("dense", torch.float32), exact, strict=True
    ):
        assert (ours - expected).abs().max() < 2 * (dense - expected).abs().max(), name
