"""Sliding windows: a query sees its own key and the window - 1 keys before it, and keys kept at the first positions."""

from typing import Any

import pytest
import torch
from torch import Tensor

from keysift.core.errors import UnsupportedError
from keysift.kernels import regions
from keysift.kernels.attend import BACKENDS, attend, explain
from keysift.kernels.call import make_call
from keysift.kernels.eager import blockwise, rows
from keysift.kernels.positions import Positions
from keysift.mechanisms import MECHANISMS, find
from keysift.mechanisms.rules import Softmax
from keysift.mechanisms.spec import Mechanism
from keysift.verify.agreement import draw_inputs
from tests.kernels.checks import agrees, largest_saved
from tests.refusals import refuses
from tests.representatives import slow_unless_representative


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, size in ((regions, "BLOCK", 16), (regions, "BAND", 8), (blockwise, "BLOCK", 16)):
        monkeypatch.setattr(module, name, size)
    monkeypatch.setattr(rows, "PAIRS", 1 << 10)


def mask(queries: int, keys: int, **options: Any) -> Tensor:
    """The mask of a call, B T S, as integers."""
    q, k = torch.zeros(1, 1, queries, 1), torch.zeros(1, 1, keys, 1)
    call = make_call(find("softmax"), q, k, k, **options)
    return call.visible().keep_BHTS.long().expand(-1, 1, queries, keys)[:, 0]


def test_masks() -> None:
    window_3 = [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [0, 1, 1, 1, 0, 0],
        [0, 0, 1, 1, 1, 0],
        [0, 0, 0, 1, 1, 1],
    ]
    assert mask(6, 6, window=3).tolist() == [window_3]
    assert mask(2, 6, window=3).tolist() == [window_3[4:]], "the last query is at the position of the last key"
    assert mask(3, 3, window=1).tolist() == [[[1, 0, 0], [0, 1, 0], [0, 0, 1]]]
    assert mask(6, 6, window=2, kept=1).tolist() == [
        [
            [1, 0, 0, 0, 0, 0],
            [1, 1, 0, 0, 0, 0],
            [1, 1, 1, 0, 0, 0],
            [1, 0, 1, 1, 0, 0],
            [1, 0, 0, 1, 1, 0],
            [1, 0, 0, 0, 1, 1],
        ]
    ]
    packed = Positions.packed([[4, 2]])
    assert mask(6, 6, window=2, kept=1, positions=packed).tolist() == [
        [
            [1, 0, 0, 0, 0, 0],
            [1, 1, 0, 0, 0, 0],
            [1, 1, 1, 0, 0, 0],
            [1, 0, 1, 1, 0, 0],
            [0, 0, 0, 0, 1, 0],
            [0, 0, 0, 0, 1, 1],
        ]
    ]


def test_golden_weights() -> None:
    """Softmax of [2, 1, 0.5, -1], the query at the last key."""
    q, k = torch.ones(1, 1, 1, 1).double(), torch.tensor([2, 1, 0.5, -1]).double().view(1, 1, 4, 1)
    expected = {0: [0, 0, 0.817574, 0.182426], 1: [0.785597, 0, 0.175290, 0.039113]}
    for kept, weights in expected.items():
        actual = attend("softmax", q, k, k, window=2, kept=kept, return_weights=True)[1]
        torch.testing.assert_close(actual.flatten(), torch.tensor(weights).double(), rtol=0, atol=1e-6)


CASES = {
    "short window": (20, 20, {"window": 4}),
    "blocks": (40, 40, {"window": 7}),
    "fewer queries": (20, 60, {"window": 25}),
    "one query": (1, 40, {"window": 7}),
    "more queries": (60, 20, {"window": 5}),
    "kept": (40, 40, {"window": 7, "kept": 3}),
    "kept and cached": (5, 40, {"window": 7, "kept": 3}),
    "kept beyond all": (40, 40, {"window": 7, "kept": 50}),
    "packed": (40, 40, {"window": 7, "positions": Positions.packed([[3, 21, 16], [30]], 40)}),
    "packed and kept": (40, 40, {"window": 7, "kept": 3, "positions": Positions.packed([[3, 21, 16], [40]])}),
    "padded": (40, 40, {"window": 7, "kept": 3, "positions": Positions.padded([9, 0], 40)}),
    "padded with a cache": (
        *(4, 30),
        {
            "window": 7,
            "positions": Positions.padded([1, 0], 4, start=[11, 26]).with_cached_keys([0, 0], [14, 30], 30),
        },
    ),
}


def takes(backend: str, mechanism: Mechanism, tensors: list[Tensor], options: dict[str, Any]) -> bool:
    """Whether the backend takes the call."""
    try:
        explain(mechanism, *tensors, backend=backend, **options)
    except UnsupportedError:
        return False
    return True


@pytest.mark.parametrize("mechanism", slow_unless_representative(list(MECHANISMS)))
def test_every_backend_agrees_with_the_definition(mechanism: Mechanism) -> None:
    """Value and every gradient, of each backend that takes the call."""
    for queries, keys, options in CASES.values():
        drawn = draw_inputs(mechanism, queries, keys)
        tensors = [drawn[name].float() for name in "qkv"]
        for name in BACKENDS.names():
            if takes(name, mechanism, tensors, options):
                agrees(name, mechanism, queries, keys, **options)


SLOPES = torch.tensor([0.5, 0.25, 0.1, 0.03])


@pytest.mark.parametrize("mechanism", slow_unless_representative([m for m in MECHANISMS if m.takes_bias]))
def test_slopes_are_a_bias_by_distance(mechanism: Mechanism) -> None:
    """Value and every gradient, of each backend that takes the call; they equal a bias of -slope x distance."""
    for queries, keys, options in [(40, 40, {}), (5, 40, {}), (1, 40, {"window": 9}), *CASES.values()]:
        drawn = draw_inputs(mechanism, queries, keys)
        tensors = [drawn[name].float() for name in "qkv"]
        given = {**options, "slopes": SLOPES}
        taken = [name for name in BACKENDS.names() if takes(name, mechanism, tensors, given)]
        for name in taken:
            agrees(name, mechanism, queries, keys, **given)
    q, k, v = (draw_inputs(mechanism, 40, 40)[name] for name in "qkv")
    at = torch.arange(40)
    bias = -SLOPES.double()[:, None, None] * (at[:, None] - at)
    expected = attend(mechanism, q, k, v, bias=bias, backend="dense")
    torch.testing.assert_close(attend(mechanism, q, k, v, slopes=SLOPES.double()), expected)


def test_golden_weights_of_slopes() -> None:
    q, k = torch.ones(1, 1, 1, 1).double(), torch.tensor([2, 1, 0.5, -1]).double().view(1, 1, 4, 1)
    weights = attend("softmax", q, k, k, slopes=torch.tensor([0.5]), return_weights=True)[1]
    expected = torch.tensor([0.410477, 0.248967, 0.248967, 0.091590]).double()
    torch.testing.assert_close(weights.flatten(), expected, rtol=0, atol=1e-6)


def test_one_query_with_slopes_and_a_nan_value() -> None:
    """A step of decoding takes another path for finite values."""
    q, k = torch.randn(1, 4, 1, 8), torch.randn(1, 4, 30, 8)
    with torch.no_grad():
        actual = attend("softmax", q, k, k, slopes=SLOPES)
        torch.testing.assert_close(actual, attend("softmax", q, k, k, slopes=SLOPES, backend="dense"))
        k[:, :, 3] = torch.nan
        assert bool(attend("softmax", q, k, k, slopes=SLOPES).isnan().all())


def test_backends_that_take_a_window() -> None:
    """A window changes the backend of no mechanism but screening, whose kernel has windows of its own."""
    for mechanism in MECHANISMS:
        drawn = draw_inputs(mechanism, 600, 600)
        tensors = [drawn[name].float() for name in "qkv"]
        chosen = explain(mechanism, *tensors, window=7).backend
        if mechanism.window_scalar is None:
            assert chosen == explain(mechanism, *tensors).backend, mechanism.name
        if isinstance(mechanism.rule, Softmax):
            assert chosen == ("sdpa" if mechanism.rule.forget is None else "decayed_cpu")
        assert chosen != "dense", mechanism.name


@pytest.mark.parametrize(
    "options",
    [{"window": 7}, {"window": 1}, {"window": 7, "kept": 3}, {"window": 7, "positions": Positions.packed([[30, 11]])}],
    ids=str,
)
@pytest.mark.parametrize("queries", [1, 5, 41])
def test_regions_cover_each_visible_pair_once(options: dict[str, Any], queries: int) -> None:
    if "positions" in options and queries < 41:
        pytest.skip("packed documents have as many queries as keys")
    q, k = torch.zeros(1, 1, queries, 1), torch.zeros(1, 1, 41, 1)
    call = make_call(find("softmax"), q, k, k, **options)
    all_regions = regions.regions_of(call)
    assert all_regions is not None
    covered = torch.zeros(queries, 41, dtype=torch.int64)
    for region in all_regions:
        block = torch.ones(region.shape, dtype=torch.int64)
        if region.band is not None:
            block = region.band.visible(region.shape, torch.device("cpu")).long()
        covered[region.queries, region.keys] += block.tril() if region.causal else block
    keep = call.visible().keep_BHTS[0, 0]
    assert torch.equal(covered, keep.long())
    assert torch.equal(regions.visible_counts(call)[0, 0], keep.sum(-1, keepdim=True))


def test_work_is_linear_in_the_length() -> None:
    """Pairs of all regions and blocks: at most the band and its corners."""
    q = torch.zeros(1, 1, 4000, 1)
    call = make_call(find("softmax"), q, q, q, window=20)
    blocks = [(region.queries, region.keys) for region in regions.regions_of(call) or []]
    for pairs in (blocks, list(regions.query_blocks(call))):
        assert sum((t.stop - t.start) * (s.stop - s.start) for t, s in pairs) <= 4000 * (20 + 16)
    leaf = torch.randn(1, 1, 640, 4, requires_grad=True)
    assert largest_saved(lambda: attend("softmax", leaf, leaf, leaf, window=20, backend="sdpa")) <= 640 * 4


def test_a_window_longer_than_every_distance_is_none() -> None:
    q = torch.zeros(1, 1, 9, 1)
    assert make_call(find("softmax"), q, q, q, window=9, kept=2).window is None
    assert make_call(find("softmax"), q, q, q, window=8).window == 8


def test_masked_values_of_a_window_reach_no_output() -> None:
    q, v = torch.randn(1, 1, 30, 4), torch.randn(1, 1, 30, 4)
    expected = attend("softmax", q, q, v, window=5)
    v[..., 3, :] = torch.nan
    actual = attend("softmax", q, q, v, window=5)
    sees = torch.zeros(30, dtype=torch.bool)
    sees[3:8] = True
    assert bool(actual[0, 0, sees].isnan().all())
    torch.testing.assert_close(actual[0, 0, ~sees], expected[0, 0, ~sees])


def test_refusals() -> None:
    q = torch.zeros(1, 1, 3, 1)
    with refuses("kept=2 adds keys to a window, and there is none"):
        attend("softmax", q, q, q, kept=2)
    with refuses("slopes must hold one floating-point number for each of 1 heads"):
        attend("softmax", q, q, q, slopes=torch.ones(2))
    with refuses("slopes have no meaning for it"):
        attend("screening", q, q, q, slopes=torch.ones(1))
    with refuses("leave causal=True with them"):
        attend("softmax", q, q, q, slopes=torch.ones(1), causal=False)
    with refuses("window must be at least 1"):
        attend("softmax", q, q, q, window=0)
    with refuses("stick_breaking leaves out the own key, so a window of 1 holds no key; make it at least 2"):
        attend("stick_breaking", q, q, q, window=1)
    with refuses("window=2 counts keys at or before the query"):
        attend("softmax", q, q, q, window=2, causal=False)
