"""The softmax family on torch's kernel agrees with the definition in value and every gradient, wherever keys stand."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from keysift.evaluate.agreement import draw, no_worse_than_plain
from keysift.kernels import parts, sdpa
from keysift.kernels.attend import attend, explain
from keysift.kernels.call import check
from keysift.kernels.positions import Positions
from keysift.mechanisms import MECHANISMS, find
from keysift.mechanisms.rules import Softmax
from keysift.mechanisms.spec import Mechanism
from tests.kernels import checks
from tests.kernels.checks import largest_saved
from tests.refusals import refuses
from tests.representatives import few_at_once

FAMILY = [m for m in MECHANISMS if isinstance(m.rule, Softmax)]
FAMILY += [find("differential_v2+output_gate"), find("softmax_sink+value_gate")]
every = pytest.mark.parametrize("mechanism", few_at_once(FAMILY))


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "BLOCK", 16)


agrees = partial(checks.agrees, "sdpa")


@every
@pytest.mark.parametrize(("t", "s"), [(1, 1), (1, 40), (5, 40), (40, 33), (63, 63), (200, 200)])
def test_lengths_and_caches(mechanism: Mechanism, t: int, s: int) -> None:
    agrees(mechanism, t, s)


@every
def test_places(mechanism: Mechanism) -> None:
    agrees(mechanism, 20, 33, causal=False)
    agrees(mechanism, 20, 20, positions=Positions.packed([[3, 9, 8], [20]]))
    agrees(mechanism, 20, 20, positions=Positions.padded([3, 0], 20))
    agrees(mechanism, 4, 30, positions=Positions.counted(4, start=26).seeing([0, 0], [30, 30], 30))
    agrees(mechanism, 4, 30, positions=Positions.padded([1, 0], 4, start=[11, 26]).seeing([0, 0], [14, 30], 30))
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
    q, k, v = (draw(mechanism, 20, 40)[name].float() for name in "qkv")
    with refuses("multiplies the bias too, and torch's kernel has no gradient for a bias"):
        attend(mechanism, q, k, v, bias=bias, backend="sdpa")


@every
def test_rows_that_see_nothing(mechanism: Mechanism) -> None:
    keep = torch.rand(2, 1, 20, 40) > 0.3
    keep[:, :, 7] = False
    fast = agrees(mechanism, 20, 40, keep=keep)
    assert (fast["output"][:, :, 7] == 0).all()
    assert (fast["gradient of q"][:, :, 7] == 0).all()
    fast = agrees(mechanism, 20, 9)
    assert (fast["output"][:, :, :11] == 0).all()


@pytest.mark.parametrize("sink", [-math.inf, -200.0, 0.0, 90.0])
def test_sinks_from_nothing_to_everything(sink: float) -> None:
    mechanism = find("softmax_sink")
    given = draw(mechanism, 40, 40) | {"sink": torch.full((4,), sink, dtype=torch.float64)}
    no_worse_than_plain(mechanism, given, backend="sdpa")


@pytest.mark.parametrize("widths", [(4, 9), (9, 4)])
def test_keys_and_values_of_different_width(widths: tuple[int, int]) -> None:
    q, k = torch.randn(2, 4, 30, widths[0]), torch.randn(2, 2, 30, widths[0])
    v = torch.randn(2, 2, 30, widths[1])
    torch.testing.assert_close(attend("softmax", q, k, v), attend("softmax", q, k, v, backend="dense"))


@pytest.fixture
def _without_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device, or with a torch, that has none: the public function runs."""
    monkeypatch.setattr(sdpa, "_forward_op", None)


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
    said = "a sink needs the logarithm of the denominator, which only torch's operator for the CPU gives"
    assert explain("softmax_sink", q, q, q).declined["sdpa"] == said


def test_is_chosen_and_says_why_not() -> None:
    q = torch.randn(1, 1, 8, 4)
    assert explain("softmax", q, q, q).backend == "sdpa"
    assert explain("softmax", q, q, q, return_weights=True).declined["sdpa"] == "it never forms the weights"
    assert explain("sigmoid", q, q, q).declined["sdpa"] == "it computes softmaxes, and sigmoid is none"
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
def test_compiles_whole(name: str) -> None:
    mechanism = find(name)
    given = {n: x.float() for n, x in draw(mechanism, 20, 20).items()}
    scalars = {n: x for n, x in given.items() if n not in "qkv"}

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(mechanism, q, k, v, scalars=scalars, backend="sdpa").square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for run in (loss, compiled):
        leaves = [given[n].clone().requires_grad_() for n in "qkv"]
        grads = torch.autograd.grad(run(*leaves), leaves)
        if run is loss:
            wanted = grads
    torch.testing.assert_close(grads, wanted)


def test_the_operators_are_what_torch_expects() -> None:
    q, k, v = (torch.randn(1, 2, 6, 4, requires_grad=True) for _ in range(3))
    sink = torch.zeros(2, requires_grad=True)
    for inputs in (
        (q, k, v, sink, None, None, 0, True, 0.5),
        (q, k, v, None, None, torch.zeros(1, 1, 6, 6), 0, False, 0.5),
    ):
        torch.library.opcheck(sdpa._softmax_attention, inputs)


def test_no_tensor_grows_with_queries_times_keys() -> None:
    q = torch.randn(1, 1, 640, 4, requires_grad=True)
    for name in ("softmax", "softmax_sink", "softmax_minus_uniform", "ssmax"):
        assert largest_saved(lambda name=name: attend(name, q, q, q, backend="sdpa")) <= 640 * 4  # type: ignore[misc]


def every_pair(positions: Positions, causal: bool, batch: int, t: int, s: int) -> Tensor:
    q, k = torch.zeros(batch, 1, t, 1), torch.zeros(batch, 1, s, 1)
    call = check(find("softmax"), q, k, k, positions=positions, causal=causal)
    seen = torch.zeros(batch, 1, t, s, dtype=torch.int64)
    cut = parts.cut(call)
    assert cut is not None
    for part in cut:
        shape = (part.queries.stop - part.queries.start, part.keys.stop - part.keys.start)
        block = torch.ones(shape, dtype=torch.int64)
        seen[part.rows, :, part.queries, part.keys] += block.tril() if part.causal else block
    keep = call.visible().keep_BHTS.expand(batch, 1, t, s)
    torch.testing.assert_close(parts.seen(call).expand(batch, 1, t, 1), keep.sum(-1, keepdim=True))
    return seen - keep.long()


@pytest.mark.parametrize("start", range(-9, 12))
@pytest.mark.parametrize(("t", "s"), [(1, 1), (4, 7), (7, 4), (5, 5)])
def test_parts_hold_every_visible_pair_once(start: int, t: int, s: int) -> None:
    for causal in (True, False):
        positions = Positions(queries=t, keys=s, first=start, key_first=0)
        assert (every_pair(positions, causal, 1, t, s) == 0).all()
    assert (every_pair(Positions.packed([[3, 1, 4], [8], [2, 2]], 9), True, 3, 9, 9) == 0).all()


@pytest.mark.parametrize("learning", [False, True])
def test_the_layout_in_memory_changes_nothing(learning: bool) -> None:
    """torch.cat of two columns lays entries of a row apart; so does any transpose."""
    plain = [torch.randn(1, 4, 6, 2, dtype=torch.float64) for _ in range(3)]
    apart = [x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2).requires_grad_(learning) for x in plain]
    assert all(x.stride(-1) != 1 for x in apart)
    found = attend("softmax", *apart, backend="sdpa")
    torch.testing.assert_close(found, attend("softmax", *plain, backend="dense"))
    if learning:
        leaves = [x.requires_grad_() for x in plain]
        wanted = torch.autograd.grad(attend("softmax", *leaves, backend="dense").sin().sum(), leaves)
        torch.testing.assert_close(torch.autograd.grad(found.sin().sum(), apart), wanted)
