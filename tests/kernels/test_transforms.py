"""Function transforms, forward-mode derivatives, second derivatives and empty batches: right, or refused in words."""

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from keysift.kernels.attend import BACKENDS, attend, explain, only
from keysift.kernels.positions import Positions
from keysift.mechanisms import MECHANISMS
from keysift.mechanisms.spec import Mechanism
from keysift.models.multiscreen import Multiscreen, MultiscreenConfig
from tests.machine import needs_kernel
from tests.refusals import refuses

# torch's own formulas for forward mode are scripted.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:DeprecationWarning")
CENTRE = torch.tensor([1.0, 0.6, -0.8, 0.5])


def open_inputs() -> list[Tensor]:
    return [*(CENTRE + 0.3 * torch.randn(2, 1, 2, 9, 4)), torch.randn(1, 2, 9, 4)]


def change(by: float, backend: str, x: list[Tensor], direction: Tensor) -> Tensor:
    """The directional derivative in q by central differences, in fp64."""
    q, k, v = (t.double() for t in x)
    step = by * direction.double()
    up, down = (attend("screening", q + s, k, v, backend=backend) for s in (step, -step))
    return ((up - down) / (2 * by)).float()


def test_a_tangent_is_never_dropped() -> None:
    """The compiled kernel has no forward mode: auto takes a backend that has, with torch.func and with dual numbers."""
    q, k, v = x = open_inputs()
    direction = torch.randn_like(q)
    wanted = change(1e-6, "dense", x, direction)
    _, ours = torch.func.jvp(lambda q: attend("screening", q, k, v), (q,), (direction,))
    torch.testing.assert_close(ours, wanted, rtol=1e-3, atol=1e-4)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, direction)
        tangent = forward_ad.unpack_dual(attend("screening", dual, k, v)).tangent
        assert explain("screening", q, k, v).backend == explain("screening", q.clone(), k, v).backend
        for given in ((dual, k, v), (q, dual, v), (q, k, dual)):
            assert explain("screening", *given).backend == "dense"
        window = forward_ad.make_dual(torch.full((2,), 5.0), torch.ones(2))
        assert explain("screening", q, k, v, scalars={"window": window}).backend == "dense"
    torch.testing.assert_close(tangent, wanted, rtol=1e-3, atol=1e-4)


def test_a_whole_model_in_forward_mode() -> None:
    model = Multiscreen(MultiscreenConfig.psi(2, vocab_size=11), torch.Generator().manual_seed(0))
    tokens = torch.randint(0, 11, (1, 12))
    parameters = dict(model.named_parameters())
    direction = {name: torch.randn_like(p) for name, p in parameters.items()}
    run = lambda p: torch.func.functional_call(model, p, (tokens,))  # noqa: E731
    _, ours = torch.func.jvp(run, (parameters,), (direction,))
    with only("dense"):
        _, wanted = torch.func.jvp(run, (parameters,), (direction,))
    torch.testing.assert_close(ours, wanted)
    assert ours.abs().max() > 0


def test_vmap_and_grad() -> None:
    q, k, v = open_inputs()
    many = torch.stack((q, 2 * q.flip(2), q + 0.1))
    over = torch.vmap(lambda q: attend("screening", q, k, v))(many)
    torch.testing.assert_close(over, torch.stack([attend("screening", one, k, v) for one in many]))
    windows = torch.tensor([2.5, 6.0])
    over = torch.vmap(lambda w: attend("screening", q, k, v, scalars={"window": w}))(windows)
    each = [attend("screening", q, k, v, scalars={"window": w}) for w in windows]
    torch.testing.assert_close(over, torch.stack(each))

    def loss(q: Tensor) -> Tensor:
        return attend("screening", q, k, v).square().sum()

    leaf = q.clone().requires_grad_()
    torch.testing.assert_close(torch.func.grad(loss)(q), torch.autograd.grad(loss(leaf), leaf)[0])


@needs_kernel
def test_inside_a_transform_the_kernel_says_no() -> None:
    said: list[str] = []

    def loss(q: Tensor) -> Tensor:
        said.append(explain("screening", q, q, q).declined["screening_cpu"])
        return q.sum()

    torch.func.grad(loss)(torch.randn(1, 2, 9, 4))
    assert said == ["it is a compiled operator, which torch.func cannot transform"]
    with refuses("blockwise: it computes blocks anew"):
        torch.func.grad(lambda q: attend("screening", q, q, q, backend="blockwise").sum())(torch.randn(1, 2, 9, 4))


@needs_kernel
def test_second_derivatives_are_refused_in_words() -> None:
    q = open_inputs()[0].requires_grad_()
    (first,) = torch.autograd.grad(attend("screening", q, q, q).square().sum(), q, create_graph=True)
    with refuses("first derivatives only; for second ones pass backend='dense'"):
        torch.autograd.grad(first.square().sum(), q)


def test_one_channel_cannot_be_rotated() -> None:
    one = torch.ones(1, 1, 3, 1)
    for backend in ("auto", "dense", "blockwise"):
        with refuses("screening rotates two channels of every key, so keys have at least 2, got 1"):
            attend("screening", one, one, one, backend=backend)


@pytest.mark.parametrize("mechanism", list(MECHANISMS), ids=lambda mechanism: mechanism.name)
def test_no_rows_are_no_rows_everywhere(mechanism: Mechanism) -> None:
    """B = 0 gives an empty output, and zeros for every scalar that is shared by all rows."""
    maps, key_maps = mechanism.maps, mechanism.key_maps
    for backend in ["auto", *BACKENDS.names()]:
        q, k = torch.zeros(0, 2 * maps, 5, 4, requires_grad=True), torch.zeros(0, 2 * key_maps, 5, 4)
        shared = {
            s.name: torch.full([{"H": 2, "V": 3}[axis] for axis in s.per.value], s.probes[0], requires_grad=True)
            for s in mechanism.scalars
            if not s.per.projected and s.follows is None
        }
        try:
            out = attend(mechanism, q, k, torch.zeros(0, 2, 5, 3), scalars=shared, backend=backend)
        except ValueError:
            assert backend not in ("auto", "dense")
            continue
        assert out.shape == (0, 2, 5, 3)
        grads = torch.autograd.grad(out.sum(), [q, *shared.values()])
        assert all((grad == 0).all() for grad in grads)
    _, weights = attend(mechanism, q, k, torch.zeros(0, 2, 5, 3), return_weights=True)
    assert weights.shape == (0, 2, 5, 5)


def test_a_model_of_no_rows() -> None:
    model = Multiscreen(MultiscreenConfig.psi(2, vocab_size=11))
    none = torch.zeros(0, 6, dtype=torch.int64)
    assert model(none).shape == (0, 6, 11)
    assert model(none, positions=Positions.packed([], 6)).shape == (0, 6, 11)
