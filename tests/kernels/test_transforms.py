"""Function transforms, forward mode, second derivatives and empty batches are correct or raise an error."""

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from keysift.kernels.attend import BACKENDS, attend, explain, force_backend
from keysift.kernels.positions import Positions
from keysift.mechanisms import MECHANISMS
from keysift.mechanisms.spec import Mechanism
from keysift.models.multiscreen import Multiscreen, MultiscreenConfig
from tests.machine import needs_kernel
from tests.refusals import refuses

# The forward-mode formulas inside torch use torch.jit.script, which warns.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:DeprecationWarning")
CENTRE = torch.tensor([1.0, 0.6, -0.8, 0.5])


def inputs_with_accepted_keys() -> list[Tensor]:
    return [*(CENTRE + 0.3 * torch.randn(2, 1, 2, 9, 4)), torch.randn(1, 2, 9, 4)]


def directional_derivative(step_size: float, backend: str, x: list[Tensor], direction: Tensor) -> Tensor:
    """Derivative along `direction` in q, by central differences in fp64."""
    q, k, v = (t.double() for t in x)
    step = step_size * direction.double()
    up, down = (attend("screening", q + s, k, v, backend=backend) for s in (step, -step))
    return ((up - down) / (2 * step_size)).float()


def test_tangents_are_not_dropped() -> None:
    """With torch.func.jvp or dual tensors, auto chooses dense: the compiled kernel has no forward mode."""
    q, k, v = x = inputs_with_accepted_keys()
    direction = torch.randn_like(q)
    expected = directional_derivative(1e-6, "dense", x, direction)
    _, ours = torch.func.jvp(lambda q: attend("screening", q, k, v), (q,), (direction,))
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-4)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, direction)
        tangent = forward_ad.unpack_dual(attend("screening", dual, k, v)).tangent
        assert explain("screening", q, k, v).backend == explain("screening", q.clone(), k, v).backend
        for inputs in ((dual, k, v), (q, dual, v), (q, k, dual)):
            assert explain("screening", *inputs).backend == "dense"
        window = forward_ad.make_dual(torch.full((2,), 5.0), torch.ones(2))
        assert explain("screening", q, k, v, scalars={"window": window}).backend == "dense"
    torch.testing.assert_close(tangent, expected, rtol=1e-3, atol=1e-4)


def test_a_whole_model_in_forward_mode() -> None:
    model = Multiscreen(MultiscreenConfig.psi(2, vocab_size=11), torch.Generator().manual_seed(0))
    tokens = torch.randint(0, 11, (1, 12))
    parameters = dict(model.named_parameters())
    direction = {name: torch.randn_like(p) for name, p in parameters.items()}
    run = lambda p: torch.func.functional_call(model, p, (tokens,))  # noqa: E731
    _, ours = torch.func.jvp(run, (parameters,), (direction,))
    with force_backend("dense"):
        _, expected = torch.func.jvp(run, (parameters,), (direction,))
    torch.testing.assert_close(ours, expected)
    assert ours.abs().max() > 0


def test_vmap_and_grad() -> None:
    q, k, v = inputs_with_accepted_keys()
    queries = torch.stack((q, 2 * q.flip(2), q + 0.1))
    batched = torch.vmap(lambda q: attend("screening", q, k, v))(queries)
    torch.testing.assert_close(batched, torch.stack([attend("screening", x, k, v) for x in queries]))
    windows = torch.tensor([2.5, 6.0])
    batched = torch.vmap(lambda w: attend("screening", q, k, v, scalars={"window": w}))(windows)
    each = [attend("screening", q, k, v, scalars={"window": w}) for w in windows]
    torch.testing.assert_close(batched, torch.stack(each))

    def loss(q: Tensor) -> Tensor:
        return attend("screening", q, k, v).square().sum()

    leaf = q.clone().requires_grad_()
    torch.testing.assert_close(torch.func.grad(loss)(q), torch.autograd.grad(loss(leaf), leaf)[0])


@needs_kernel
def test_the_kernel_declines_inside_a_transform() -> None:
    message: list[str] = []

    def loss(q: Tensor) -> Tensor:
        message.append(explain("screening", q, q, q).declined["screening_cpu"])
        return q.sum()

    torch.func.grad(loss)(torch.randn(1, 2, 9, 4))
    assert message == ["torch.func cannot transform a compiled operator"]
    with refuses("blockwise: it recomputes blocks"):
        torch.func.grad(lambda q: attend("screening", q, q, q, backend="blockwise").sum())(torch.randn(1, 2, 9, 4))


@needs_kernel
def test_second_derivatives_raise_an_error() -> None:
    q = inputs_with_accepted_keys()[0].requires_grad_()
    (first,) = torch.autograd.grad(attend("screening", q, q, q).square().sum(), q, create_graph=True)
    with refuses("no second derivatives; pass backend='dense'"):
        torch.autograd.grad(first.square().sum(), q)


def test_one_channel_cannot_be_rotated() -> None:
    x = torch.ones(1, 1, 3, 1)
    for backend in ("auto", "dense", "blockwise"):
        with refuses("screening rotates two channels of every key, so keys need at least 2, got 1"):
            attend("screening", x, x, x, backend=backend)


@pytest.mark.parametrize("mechanism", list(MECHANISMS), ids=lambda mechanism: mechanism.name)
def test_an_empty_batch_on_every_backend(mechanism: Mechanism) -> None:
    """B = 0 gives an empty output, and zero gradients for scalars that all rows share."""
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


def test_a_model_with_an_empty_batch() -> None:
    model = Multiscreen(MultiscreenConfig.psi(2, vocab_size=11))
    tokens = torch.zeros(0, 6, dtype=torch.int64)
    assert model(tokens).shape == (0, 6, 11)
    assert model(tokens, positions=Positions.packed([], 6)).shape == (0, 6, 11)


@pytest.mark.parametrize("mechanism", ["sparsemax", "entmax15", "alpha_entmax"])
def test_derivatives_of_the_threshold_family(mechanism: str) -> None:
    """Second derivatives, torch.func, vmap and forward mode, with weights of zero, where a root has no derivative."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (2 * torch.randn(1, 2, 5, 3, dtype=torch.float64, generator=generator) for _ in range(3))
    orders = [torch.tensor([1.3, 1.7], dtype=torch.float64)] if mechanism == "alpha_entmax" else []

    def run(q: Tensor, k: Tensor, v: Tensor, *alpha: Tensor) -> Tensor:
        return attend(mechanism, q, k, v, scalars=dict(zip(("alpha",), alpha, strict=False)), backend="dense")

    leaves = [x.clone().requires_grad_() for x in (q, k, v, *orders)]
    assert (attend(mechanism, q, k, v, return_weights=True)[1].tril() == 0).sum() > 20  # beyond the masked ones
    assert torch.autograd.gradgradcheck(run, leaves)
    assert torch.autograd.gradcheck(run, leaves, check_forward_ad=True)

    def loss(*x: Tensor) -> Tensor:
        return run(*x).square().sum()

    every = tuple(range(len(leaves)))
    expected = torch.autograd.grad(loss(*leaves), leaves)
    torch.testing.assert_close(torch.func.grad(loss, every)(q, k, v, *orders), expected)
    over = torch.vmap(lambda q: torch.func.grad(loss)(q, k, v, *orders))(torch.stack((q, q.flip(2))))
    torch.testing.assert_close(over[0], expected[0])
