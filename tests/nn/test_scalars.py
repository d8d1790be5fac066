"""Scalars of a layer: axes, links, constants, windows."""

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch

from keysift.kernels.scalars import align_scalars
from keysift.mechanisms.gates import output_head_gate, value_gate
from keysift.mechanisms.screening import SCREENING
from keysift.mechanisms.softmax import SOFTMAX
from keysift.mechanisms.spec import Mechanism, Per, Promise, Scalar, Site
from keysift.models.multiscreen import Multiscreen, MultiscreenConfig
from keysift.nn.inference import Inference
from keysift.nn.scalars import MechanismScalars
from tests.refusals import refuses

SITE = Site(heads=4, key_width=3, value_width=5, context=16, layer=1, depth=2)


def make_scalars(mechanism: Mechanism, key_heads: int = 4, **options: object) -> MechanismScalars:
    generator = torch.Generator().manual_seed(0)
    return MechanismScalars(mechanism, SITE, width=6, key_heads=key_heads, std=0.1, generator=generator, **options)


def test_parameters_are_named_by_symbols() -> None:
    result = make_scalars(SCREENING, symbols={"window": "s_w", "acceptance": "s_r"})
    assert {name: tuple(p.shape) for name, p in result.named_parameters()} == {"s_w": (4,), "s_r": (4,)}
    assert set(make_scalars(SCREENING).state_dict()) == {"raw_window", "raw_acceptance"}


def test_projections_have_the_axes_of_the_spec() -> None:
    x = torch.randn(2, 7, 6)
    values = make_scalars(value_gate(output_head_gate(SOFTMAX)), key_heads=2)(x, Inference())
    assert values["value_gate"].shape == (2, 2, 7, 5)
    assert values["output_head_gate"].shape == (2, 4, 7)
    assert bool((values["value_gate"] > 0).all())


def per_head(site: Site, generator: torch.Generator | None) -> torch.Tensor:
    return torch.arange(site.heads, dtype=torch.float64)


def one_number(site: Site, generator: torch.Generator | None) -> torch.Tensor:
    return torch.tensor(3.0, dtype=torch.float64)


@pytest.mark.parametrize(
    ("per", "init", "bias"), [(Per.QUERY, per_head, [0, 1, 2, 3]), (Per.KEY_CHANNEL, one_number, [3] * 10)]
)
def test_projected_scalars_take_a_bias(per: Per, init: Callable[..., torch.Tensor], bias: list[float]) -> None:
    """The bias begins at `init` for every head and channel, is trained, and is the value of `attend` by default."""
    tilt = Scalar(name="tilt", meaning="a test", per=per, bias=True, init=init, probes=(1.0,))
    mechanism = dataclasses.replace(SOFTMAX, name="tilted", scalars=(tilt,))
    result = make_scalars(mechanism, key_heads=2)
    assert result.raw_tilt.bias.tolist() == bias
    x = torch.randn(2, 7, 6)
    value = result(x, Inference())["tilt"]
    expected = (x @ result.raw_tilt.weight.T + result.raw_tilt.bias).unflatten(2, (value.shape[1], -1)).transpose(1, 2)
    torch.testing.assert_close(value, expected if per.value.endswith("V") else expected[..., 0])
    value.sum().backward()
    torch.testing.assert_close(result.raw_tilt.bias.grad, torch.full((len(bias),), 14.0))
    sizes = {"B": 2, "H": 4, "G": 2, "T": 7, "S": 7, "V": 5}
    default = align_scalars(mechanism, None, SITE, sizes, dtype=torch.float32, device=torch.device("cpu"))["tilt"]
    zeros = result(torch.zeros_like(x), Inference())["tilt"]
    torch.testing.assert_close(default.expand(*zeros.shape[:3], -1).squeeze(-1), zeros)


def test_only_projected_scalars_take_a_bias() -> None:
    with refuses("tilt is one number per head, and only a scalar projected from tokens takes a bias"):
        Scalar(name="tilt", meaning="a test", per=Per.HEAD, bias=True, probes=(1.0,))


@pytest.mark.parametrize("per", [Per.LAYER, Per.HEAD, Per.CHANNEL, Per.HEAD_CHANNEL])
def test_one_initial_number_fills_the_axes_of_the_spec(per: Per) -> None:
    scalar = Scalar(name="tilt", meaning="a test", per=per, probes=(1.0,))
    result = make_scalars(dataclasses.replace(SOFTMAX, name="tilted", scalars=(scalar,)))
    sizes = {"H": 4, "V": 5}
    assert result.raw_tilt.shape == tuple(sizes[axis] for axis in per.value)
    assert result.raw_tilt.dtype == torch.float32


def test_constants_are_not_parameters_and_not_rounded() -> None:
    constant = Scalar(
        name="tilt", meaning="a test", per=Per.LAYER, init=lambda s, g: torch.tensor(0.1), learned=False, probes=(1.0,)
    )
    result = make_scalars(dataclasses.replace(SOFTMAX, name="tilted", scalars=(constant,))).bfloat16()
    assert not list(result.parameters())
    assert result.linked(Inference())["tilt"] == torch.tensor(0.1)


def test_windows_of_key_heads() -> None:
    windows = torch.tensor([2.5, 9.0, 4.0, 3.0])
    result = make_scalars(SCREENING)
    with torch.no_grad():
        result.raw_window.copy_((windows - 1).log())
    assert result.windows(Inference()) == pytest.approx(windows.tolist())
    assert result.windows(Inference(expand_windows=4)) == pytest.approx([2.5, math.inf, 4.0, 3.0])
    shared = make_scalars(SCREENING, key_heads=2)
    shared.load_state_dict(result.state_dict())
    assert shared.windows(Inference()) == pytest.approx([9.0, 4.0])
    assert make_scalars(SOFTMAX).windows(Inference()) == [math.inf] * 4


def test_windows_are_infinite_where_a_refused_key_still_counts() -> None:
    counting = dataclasses.replace(
        SCREENING, name="counting", holds=SCREENING.holds - {Promise.REFUSED_INERT, Promise.ABSOLUTE}
    )
    assert make_scalars(counting).windows(Inference()) == [math.inf] * 4


@torch.no_grad()
def test_cached_scalars_follow_parameter_updates() -> None:
    """Scalars are cached between decode steps, and computed again after any kind of parameter update."""
    model = Multiscreen(MultiscreenConfig.psi(2, vocab_size=11))
    scalars, x, plain = model.layers[0].scalars, torch.zeros(1, 1, 4), Inference()
    first = scalars(x, plain)
    assert scalars(x, plain) is first, "computed once"
    torch.testing.assert_close(first["window"].flatten(), scalars.s_w.exp() + 1)
    for change in (lambda p: p.add_(0.5), lambda p: p.data.add_(0.5), lambda p: setattr(p, "data", p + 0.5)):
        change(scalars.s_w)
        torch.testing.assert_close(scalars(x, plain)["window"].flatten(), scalars.s_w.exp() + 1)
    assert scalars(x, Inference(expand_windows=1))["effective_window"].isinf().all()
    assert scalars(x, plain)["effective_window"].isfinite().all()
    assert scalars(x.double(), plain)["window"].dtype == torch.float64
    with torch.enable_grad():
        assert scalars(x, plain)["window"].requires_grad
