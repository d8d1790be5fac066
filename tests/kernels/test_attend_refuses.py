"""Errors of attend and weigh: what was expected, what was given, what to do."""

from typing import Any

import pytest
import torch

import keysift
from keysift.kernels.attend import BACKENDS, Backend, attend, explain
from keysift.kernels.backend import Code, Unavailable
from keysift.kernels.positions import Positions
from keysift.kernels.weigh import weigh
from keysift.mechanisms import find
from keysift.mechanisms.rules import Pointwise
from keysift.mechanisms.spec import Mechanism, Per, Scalar
from tests.refusals import refuses

Q, K, V = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 5)

CASES: list[tuple[str, dict[str, Any]]] = [
    (
        r"no mechanism is called 'sofmax'; did you mean 'softmax'\? nearest of \d+: softmax(, [^,;]+){4}; for your own",
        {"mechanism": "sofmax"},
    ),
    (r"no wrapper is called 'gate'.*known: output_gate", {"mechanism": "softmax+gate"}),
    (r"q must have 4 axes \(B H T K\), got 3 \(4x3x8\); add or remove", {"q": Q[0]}),
    (r"v must have 4 axes", {"v": V[0]}),
    (r"q must have at least one position, got 0; skip the call for an empty sequence", {"q": Q[:, :, :0]}),
    (r"k must have at least one position", {"k": K[:, :, :0], "v": V[:, :, :0]}),
    (r"v must have at least one channel", {"v": V[..., :0]}),
    (
        r"q, k and v must share one floating-point type, got k in torch.float64 and q in torch.float32",
        {"k": K.double()},
    ),
    (r"share one floating-point type, got q in torch.int64", {"q": Q.long()}),
    (r"q and k must agree in batch size, got 1 and 2", {"k": K.expand(2, -1, -1, -1)}),
    (r"q and k must agree in width, got 8 and 4", {"k": K[..., :4]}),
    (r"k and v must agree in length, got 5 and 6", {"k": K[:, :, :5]}),
    (
        r"softmax reads 1 key head\(s\) for each value head, got 1 key heads and 2 value heads; give k 2",
        {"k": K[:, :1]},
    ),
    (r"differential_v1 reads 2 key head\(s\).*give k 4 heads", {"mechanism": "differential_v1"}),
    (r"q must have 1 x a multiple of 2 value heads for softmax, got 3 heads", {"q": Q[:, :3]}),
    (
        r"q must have 2 x a multiple of 2 value heads for differential_v2, got 2 heads",
        {"mechanism": "differential_v2", "q": Q[:, :2]},
    ),
    (
        r"every tensor must be on one device, got q on cpu and v on meta; move v with .to\('cpu'\)",
        {"v": V.to("meta")},
    ),
    (r"got q on cpu and keep on meta", {"keep": torch.ones(6, dtype=torch.bool, device="meta")}),
    (r"got q on cpu and bias on meta", {"bias": torch.zeros(6, device="meta")}),
    (
        r"got q on cpu and positions.key_at on meta",
        {"positions": Positions.explicit(torch.arange(3), torch.arange(6, device="meta"))},
    ),
    (
        r"got q on cpu and window on meta",
        {"mechanism": "screening", "scalars": {"window": torch.ones(4, device="meta")}},
    ),
    (
        r"keep must be boolean \(True: attend to the key\), got torch.float32; pass a float mask as bias",
        {"keep": torch.ones(3, 6)},
    ),
    (
        r"keep must broadcast to B H T S = 1x4x3x6, got 6x3; give each axis",
        {"keep": torch.ones(6, 3, dtype=torch.bool)},
    ),
    (r"bias must broadcast to B H T S = 1x4x3x6, got 5", {"bias": torch.zeros(5)}),
    (
        r"bias is added to the scores, so it must be floating-point, got torch.bool; pass a mask as keep",
        {"bias": torch.ones(6, dtype=torch.bool)},
    ),
    (r"bias is added .* got torch.int64", {"bias": torch.ones(6, dtype=torch.int64)}),
    (r"scale must be a finite number, got nan; leave it out for 8", {"scale": float("nan")}),
    (
        r"window is the length in tokens .*: a number, got a boolean",
        {"mechanism": "screening", "scalars": {"window": torch.ones(4, dtype=torch.bool)}},
    ),
    (r"window is .* got a boolean", {"mechanism": "screening", "scalars": {"window": True}}),
    (
        r"screening scores are cosines in \[-1, 1\], so a finite additive bias has no meaning",
        {"mechanism": "screening", "bias": torch.ones(6)},
    ),
    (
        r"screening scores are cosines, so scale=0.5 has no meaning for it; leave it out",
        {"mechanism": "screening", "scale": 0.5},
    ),
    (
        r"screening is defined for keys at or before the query, so causal=False has no meaning",
        {"mechanism": "screening", "causal": False},
    ),
    (r"softmax has no scalar 'window'; it takes: none", {"scalars": {"window": 3.0}}),
    (
        r"screening has no scalar 'acceptanse'; did you mean 'acceptance'\?",
        {"mechanism": "screening", "scalars": {"acceptanse": 0.5}},
    ),
    (r"screening needs acceptance > 0 and <= 1, got 0;", {"mechanism": "screening", "scalars": {"acceptance": 0.0}}),
    (r"screening needs acceptance > 0 and <= 1, got 1.5;", {"mechanism": "screening", "scalars": {"acceptance": 1.5}}),
    (
        r"screening needs window > 0, got 0; window is the length in tokens",
        {"mechanism": "screening", "scalars": {"window": 0.0}},
    ),
    (
        r"screening needs window > 0, got -2",
        {"mechanism": "screening", "scalars": {"window": torch.tensor([3.0, 4.0, -2.0, 9.0])}},
    ),
    (r"screening needs window > 0, got nan", {"mechanism": "screening", "scalars": {"window": float("nan")}}),
    (r"alpha_entmax needs alpha > 1 and <= 2, got 1;", {"mechanism": "alpha_entmax", "scalars": {"alpha": 1.0}}),
    (r"alpha_entmax needs alpha > 1 and <= 2, got 2.1;", {"mechanism": "alpha_entmax", "scalars": {"alpha": 2.1}}),
    (r"window must broadcast to H = 4, got 3", {"mechanism": "screening", "scalars": {"window": torch.ones(3)}}),
    (r"the call and positions must agree in number of queries, got 3 and 4", {"positions": Positions.counted(4, 6)}),
    (r"the call and positions must agree in number of keys, got 6 and 3", {"positions": Positions.counted(3)}),
    (
        r"positions.at must broadcast to B H T = 1x4x3, got 1x2x3",
        {"positions": Positions.explicit(torch.zeros(1, 2, 3, dtype=torch.int64), torch.arange(6))},
    ),
    (r"no backend is called 'fast'", {"backend": "fast"}),
]


@pytest.mark.parametrize(("match", "changes"), CASES, ids=[match[:40] for match, _ in CASES])
def test_refuses(match: str, changes: dict[str, Any]) -> None:
    arguments = {"mechanism": "softmax", "q": Q, "k": K, "v": V, **changes}
    for function in (attend, explain):
        with refuses(match):
            function(**arguments)


def test_every_error_is_a_value_error() -> None:
    with refuses("no mechanism is called", ValueError):
        keysift.attend("nothing", Q, K, V)


def test_a_named_backend_runs_or_raises() -> None:
    BACKENDS.add(
        "broken",
        Backend(
            name="broken",
            about="",
            run=lambda call: (call.v, None),
            unavailable=lambda: Unavailable(Code.NOT_BUILT, "no such chip"),
        ),
    )
    try:
        with refuses(r"no allowed backend can run this call \(broken: no such chip\); pass backend='auto'"):
            attend("softmax", Q, K, V, backend="broken")
        assert explain("softmax", Q, K, V).backend != "broken"
    finally:
        BACKENDS.remove("broken")


@pytest.mark.parametrize(
    ("match", "changes"),
    [
        (r"scores must be a row of numbers, got one number; pass a list", {"scores": 2.0}),
        (r"scores must have at least one key, got 0", {"scores": []}),
        (
            r"screening reads scores as cosines in \[-1, 1\], got 2; divide by",
            {"mechanism": "screening", "scores": [2.0, 0.1]},
        ),
        (r"second must broadcast to \. = 2, got 3", {"second": [1.0, 2.0, 3.0]}),
        (r"keep must be boolean \(True: attend to the key\), got torch.int64", {"keep": [1, 0]}),
        (r"distance must broadcast to \. = 2, got 3", {"distance": [1, 2, 3]}),
    ],
)
def test_weigh_refuses(match: str, changes: dict[str, Any]) -> None:
    with refuses(match):
        weigh(**{"mechanism": "softmax", "scores": [1.0, 2.0], **changes})


def test_a_mechanism_must_list_its_scalars() -> None:
    def weigh_key(x: torch.Tensor, distance: torch.Tensor, *, temperature: torch.Tensor) -> torch.Tensor:
        return temperature * x

    spec: dict[str, Any] = {"name": "toy", "title": "", "source": "", "page": "", "formula": "", "holds": frozenset()}
    with refuses("toy: weigh_key needs temperature, which the mechanism does not list in scalars; add a Scalar"):
        Mechanism(rule=Pointwise(weigh_key=weigh_key), **spec)
    temperature = Scalar(name="temperature", meaning="a factor of the scores", per=Per.LAYER, probes=(1.0,))
    assert (
        Mechanism(rule=Pointwise(weigh_key=weigh_key), scalars=(temperature,), **spec).scalar("temperature")
        is temperature
    )


def test_names_are_registered_once() -> None:
    with refuses("mechanism 'softmax' is already registered; choose another name"):
        keysift.register(find("softmax"))


def test_unknown_attribute_of_the_package() -> None:
    with refuses("module 'keysift' has no attribute 'attention'; it offers", AttributeError):
        _ = keysift.attention  # type: ignore[attr-defined]
