"""The decayed_cpu backend agrees with the definition of forget gates and ALiBi, for every kind of positions."""

import ctypes

import pytest
import torch
from torch import Tensor

from keysift.kernels.attend import attend, explain, force_backend
from keysift.kernels.cpu import decayed, library
from keysift.kernels.positions import Positions
from keysift.mechanisms import find
from keysift.models.transformer import Transformer, TransformerConfig
from keysift.nn.position import alibi_slopes
from keysift.verify.agreement import check_agreement, draw_inputs
from keysift.verify.cache_equality import check_cache
from tests.kernels.checks import check_compiles, largest_saved, poison_outputs
from tests.machine import needs_kernel
from tests.refusals import refuses

pytestmark = needs_kernel
FOX, SOFTMAX = find("forgetting"), find("softmax")
CACHED = Positions.padded([1, 0], 4, start=[11, 26]).with_cached_keys([0, 0], [14, 30], 30)


def agrees(t: int, s: int, *, level: float = 1.0, **options: object) -> None:
    """Forget gates and, with `slopes`, ALiBi."""
    mechanism = SOFTMAX if "slopes" in options else FOX
    draws = [draw_inputs(mechanism, t, s, seed=seed) for seed in range(2)]
    if mechanism is FOX:
        for tensors in draws:
            tensors["log_forget"] = tensors["log_forget"] * level
    check_agreement(mechanism, *draws, backend="decayed_cpu", **options)


@pytest.mark.parametrize("level", [1e-3, 1.0, 30.0])
def test_gates_of_every_size(level: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """From gates that forget nothing in 700 tokens to gates that leave the own key alone."""
    poison_outputs(monkeypatch)
    for t, s in ((70, 70), (1, 40), (5, 40), (40, 20), (300, 700)):
        agrees(t, s, level=level)
    agrees(60, 60, level=level, positions=Positions.packed([[3, 50, 7], [40]], 60))
    agrees(20, 20, level=level, positions=Positions.padded([20, 3], 20))
    agrees(4, 30, level=level, positions=CACHED)
    agrees(90, 90, level=level, window=70)
    agrees(60, 60, level=level, window=20, positions=Positions.packed([[3, 50, 7], [60]]))


@pytest.mark.parametrize("slopes", [(1e-3, 4.0), (0.3, 0.0), (-0.02, 0.5)], ids=str)
def test_slopes_of_every_size(slopes: tuple[float, ...]) -> None:
    """Also a slope that prefers older keys."""
    heads = draw_inputs(SOFTMAX, 2, 2)["q"].shape[1]
    given = torch.tensor([slopes[head % 2] for head in range(heads)])
    for t, s in ((70, 70), (5, 40), (40, 20), (300, 700)):
        agrees(t, s, slopes=given)
    agrees(60, 60, slopes=given, positions=Positions.packed([[3, 50, 7], [40]], 60))
    agrees(4, 30, slopes=given, positions=CACHED)
    agrees(90, 90, slopes=given, window=70)


@pytest.mark.parametrize("name", ["differential_v1", "differential_v2", "softmax_minus_uniform"])
def test_two_maps_and_levels(name: str) -> None:
    """Both maps of a head have its slope."""
    mechanism = find(name)
    slopes = torch.tensor(alibi_slopes(draw_inputs(mechanism, 2, 2)["q"].shape[1] // mechanism.maps))
    for t, s, options in (
        (70, 70, {}),
        (20, 40, {}),
        (60, 60, {"positions": Positions.packed([[3, 50, 7], [40]], 60)}),
    ):
        draws = [draw_inputs(mechanism, t, s, seed=seed) for seed in range(2)]
        check_agreement(mechanism, *draws, backend="decayed_cpu", slopes=slopes, **options)


def test_gates_and_slopes_add_up() -> None:
    q, k, v = (torch.randn(1, 2, 40, 4) for _ in range(3))
    gates, slopes = -torch.rand(1, 2, 40), torch.tensor([0.1, 2.0])
    outs = [
        attend("forgetting", q, k, v, scalars={"log_forget": gates}, slopes=slopes, backend=backend)
        for backend in ("decayed_cpu", "dense")
    ]
    torch.testing.assert_close(*outs)


@pytest.mark.parametrize("size", [1.0, 300.0])
def test_scores_of_every_size(size: float) -> None:
    """Scores far above that of the own key, also far away, and far below it."""
    for sign in (1.0, -1.0):
        q, k, v = (torch.randn(1, 1, 200, 4) for _ in range(3))
        q[..., 0], k[..., 0] = 1.0, 0.0
        k[:, :, ::17, 0] = sign * size
        gates = torch.full((1, 1, 200), -0.7)
        outs = [
            attend("forgetting", q, k, v, scalars={"log_forget": gates}, backend=b) for b in ("decayed_cpu", "dense")
        ]
        torch.testing.assert_close(*outs, rtol=1e-4, atol=1e-4)


def test_keys_that_cannot_count_are_not_read() -> None:
    """And all others are: the first key of a query is the first one whose weight may differ from zero."""
    q, k = torch.randn(1, 1, 640, 4), torch.randn(1, 1, 640, 4)
    decay = -torch.arange(640, dtype=torch.float64)[None, None]
    newest, first_key = decayed._reach(decayed.Inputs(q, k, k, decay, None, 0, 0, 0.5))
    scores = 0.5 * q.double() @ k.double().mT
    torch.testing.assert_close(newest[0, 0], scores[0, 0].diagonal().float())
    x = scores + decay.mT - decay
    distance = torch.arange(640)[:, None] - torch.arange(640)
    w = x.masked_fill(distance < 0, -torch.inf).softmax(-1)[0, 0]
    skipped = torch.arange(640) < first_key[0, 0, :, None]
    assert float(w[skipped].max()) < 4e-31
    assert int(first_key[0, 0, -1]) > 500
    rising = torch.cat((decay, -2 * decay), dim=1)
    both = (x.expand(1, 2, 640, 4) for x in (q, k, k))
    assert not decayed._reach(decayed.Inputs(*both, rising, None, 0, 0, 0.5))[1].any(), "older keys may weigh more"


def test_a_first_key_is_read() -> None:
    """A key is left out only if the bound says so: without the length of the query the bound would be too low."""
    q, k, v = (torch.zeros(1, 1, 400, 2) for _ in range(3))
    q[..., 0], k[:, :, 0, 0] = 20.0, 20.0  # a score of 400 with the first key alone
    v[:, :, 0] = 1.0
    gates = torch.full((1, 1, 400), -1.0)
    out = attend("forgetting", q, k, v, scale=1.0, scalars={"log_forget": gates}, backend="decayed_cpu")
    assert float(out[0, 0, 390].min()) > 0.99, "a score of 400 - 390"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    check_agreement(FOX, draw_inputs(FOX, 200, 200), backend="decayed_cpu", dtype=dtype)


def test_results_do_not_depend_on_threads() -> None:
    leaves = [torch.randn(1, 3, 700, 8).requires_grad_() for _ in range(3)]
    gates = (-torch.rand(1, 3, 700)).requires_grad_()
    actual: list[tuple[Tensor, ...]] = []
    before = torch.get_num_threads()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        out = attend("forgetting", *leaves, scalars={"log_forget": gates}, backend="decayed_cpu")
        actual.append((out, *torch.autograd.grad(out.sin().sum(), [*leaves, gates])))
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*actual, strict=True))


def test_is_chosen_or_gives_a_reason() -> None:
    q = torch.randn(1, 1, 20, 4)
    one = torch.ones(1)
    assert explain("forgetting", q, q, q).backend == "decayed_cpu"
    assert explain("softmax", q, q, q, slopes=one).backend == "decayed_cpu"
    assert explain("softmax", q, q, q).declined["decayed_cpu"] == "there are no forget gates and no slopes"
    assert explain("softmax_sink", q, q, q, slopes=one).declined["decayed_cpu"] == "it does not implement softmax_sink"
    short = explain("forgetting", q[:, :, :1], q, q)
    assert (short.backend, short.declined["decayed_cpu"]) == ("sdpa", "fewer than 16 queries do not fill a block")
    kept = explain("forgetting", q, q, q, window=3, kept=2)
    assert kept.declined["decayed_cpu"] == "it does not support keys that are kept beside a window"
    with refuses("it does not support a keep mask or a bias"):
        explain("softmax", q, q, q, slopes=one, keep=torch.ones(20, 20, dtype=torch.bool), backend="decayed_cpu")


@pytest.mark.parametrize("change", [{"mechanism": "forgetting", "position": "none"}, {"position": "alibi"}], ids=str)
def test_caches(change: dict[str, str]) -> None:
    config = TransformerConfig(vocab_size=11, depth=2, width=16, heads=4, key_heads=2, **change)
    model = Transformer(config, torch.Generator().manual_seed(0)).eval()
    check_cache(model, (70, 3, 1, 1, 20))
    with force_backend("decayed_cpu"):
        check_cache(model, (70, 3, 1, 1))


def test_no_saved_tensor_grows_with_queries_times_keys() -> None:
    q = torch.randn(1, 1, 640, 4, requires_grad=True)
    assert largest_saved(lambda: attend("forgetting", q, q, q, backend="decayed_cpu")) <= 640 * 4
    slopes = torch.tensor(alibi_slopes(1))
    assert largest_saved(lambda: attend("softmax", q, q, q, slopes=slopes, backend="decayed_cpu")) <= 640 * 4


@pytest.mark.slow
def test_operators_pass_opcheck_and_compile() -> None:
    q, k, v = (torch.randn(1, 2, 6, 4, requires_grad=True) for _ in range(3))
    decay = torch.full((1, 2, 6), -0.5, dtype=torch.float64).cumsum(-1).requires_grad_()
    torch.library.opcheck(decayed._decayed, (q, k, v, decay, None, 0, 0, 0.5))
    torch.library.opcheck(decayed._decayed, (q, k, v, decay, torch.tensor([[0, 1, 3, 1, 3, 0]]), 0, 2, 0.5))
    check_compiles("forgetting", "decayed_cpu")


def test_the_library_refuses_invalid_problems() -> None:
    x, decay = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, dtype=torch.float64)
    with refuses("rejected the call: batch, queries, keys and window must be at least 0"):
        decayed._forward(decayed.Inputs(x, x, x, decay, None, 0, -1, 1.0))
    inputs = decayed.Inputs(x, x, x, decay, None, 0, 0, 1.0)
    newest, first_key = decayed._reach(inputs)
    out, loaded = library.View.of(torch.zeros(1, 1, 2, 4)), library.load()
    for name in ("shift", "decay", "first_key"):
        problem = decayed._problem(inputs, newest, first_key)
        setattr(problem, name, None)
        assert loaded.keysift_sums_forward(ctypes.byref(problem), ctypes.byref(out), None, None) != 0
        assert b"shift, decay and first_key must not be NULL" in loaded.keysift_last_error()
