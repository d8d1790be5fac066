"""Reference values for the playground's JavaScript, computed by the dense definition in fp64.

The record contains every registered mechanism, the presets, and test cases with their weights. In the playground the
score of a key is its cosine c with the query. Mechanisms whose scores are cosines read c; all others read the logit
x = c sqrt(d) / T, as for queries and keys of length sqrt(d) with the scale 1 / sqrt(d) and a temperature T.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version

import torch
from torch import Tensor

from keysift.kernels.attend import attend
from keysift.kernels.positions import Positions
from keysift.kernels.weigh import ROW_SITE, weigh
from keysift.mechanisms import MECHANISMS
from keysift.mechanisms.spec import Mechanism, Promise, Scalar
from keysift.records.playground import Case, Dial, Playable, Playground, Preset, PresetCase, Scene

WIDTH = 4  # the initial d of the page: logits are twice the cosines
FAR = 1e9  # an effectively infinite window: keys of the scores view have no positions

PRESETS = (
    Preset(name="two", title="two keys", cosines=(0.9, 0.7)),
    Preset(name="third", title="a weak third arrives", cosines=(0.9, 0.7, 0.3), before=(0.9, 0.7)),
    Preset(name="equal", title="all equal", cosines=(0.6, 0.6, 0.6, 0.6)),
    Preset(name="nothing", title="nothing relevant", cosines=(-0.5, -0.6, -0.5, -0.7)),
    Preset(name="needle100", title="needle and 100 distractors", cosines=(0.9,), before=(0.9,), crowd=100),
    Preset(name="needle10000", title="needle and 10,000 distractors", cosines=(0.9,), before=(0.9,), crowd=10_000),
)
PICTURE_PRESETS = (
    Preset(name="weak", title="with weak competitors", cosines=(0.9, 0.3)),
    Preset(name="strong", title="with strong competitors", cosines=(0.9, 0.8, 0.8, 0.7)),
)
ROWS = (
    (0.9, 0.7),
    (0.9, 0.7, 0.3),
    (0.6, 0.6, 0.6, 0.6),
    (-0.5, -0.6, -0.5, -0.7),
    (1.0, 0.8, 0.5, 0.2, 0.0, -0.2, -0.6, -1.0),
)
SECOND = (0.3, -0.2, 0.6, 0.0, 0.9, 0.1, -0.4, 0.5)


def distractors(count: int, level: float = 0.0) -> list[float]:
    """Cosines of distractors: evenly spread over level +- 0.2 by the golden ratio, the same in Python and the page."""
    return [level + 0.2 * (2 * ((j + 1) * 0.6180339887498949 % 1) - 1) for j in range(count)]


def playground() -> Playground:
    """The record that the playground page reads."""
    mechanisms = tuple(MECHANISMS)
    return Playground(
        version=version("keysift"),
        promises={promise.label: promise.value for promise in Promise},
        mechanisms=tuple(_playable(mechanism) for mechanism in mechanisms),
        presets=PRESETS,
        cases=tuple(case for mechanism in mechanisms for case in _cases(mechanism)),
        preset_cases=tuple(_preset_case(preset, mechanism) for preset in PRESETS for mechanism in mechanisms),
        scenes=tuple(_scene(**setting) for setting in _SETTINGS),
    )


def picture_cases() -> tuple[PresetCase, ...]:
    """Weights of the same key with weak and with strong competitors, under softmax and screening."""
    both = (MECHANISMS.find("softmax"), MECHANISMS.find("screening"))
    return tuple(_preset_case(preset, mechanism) for preset in PICTURE_PRESETS for mechanism in both)


def _playable(mechanism: Mechanism) -> Playable:
    return Playable(
        name=mechanism.name,
        title=mechanism.title,
        formula=mechanism.formula,
        source=mechanism.source,
        absolute=Promise.ABSOLUTE in mechanism.holds,
        cosine=mechanism.cosine_scores,
        maps=mechanism.maps,
        dials=tuple(_dial(scalar) for scalar in _weight_scalars(mechanism) if scalar.name != mechanism.window_scalar),
        holds=tuple(promise.label for promise in Promise if promise in mechanism.holds),
    )


def _weight_scalars(mechanism: Mechanism) -> list[Scalar]:
    """The scalars that the weights depend on; others act before the scores or after the sum."""
    names = {name: None for step in mechanism.rule.steps for name in mechanism.scalar_names[step]}
    return [mechanism.scalar(name) for name in names]


def _dial(scalar: Scalar) -> Dial:
    """A slider over the allowed values. Without a bound it ends at twice the largest probe."""
    default = float(scalar.default(ROW_SITE))
    values = [probe for probe in (*scalar.probes, default) if math.isfinite(probe)]
    low = scalar.above if math.isfinite(scalar.above) else min(0.0, *(2 * value for value in values))
    high = scalar.up_to if math.isfinite(scalar.up_to) else 2 * max(values)
    step = (high - low) / 100
    return Dial(
        name=scalar.name,
        meaning=scalar.meaning,
        default=_short(default),
        low=low if scalar.above_allowed or not math.isfinite(scalar.above) else low + step,
        high=high,
    )


def _scalars(mechanism: Mechanism) -> dict[str, float]:
    """Initial scalars of the page: defaults, and an effectively infinite window."""
    return {
        scalar.name: FAR if scalar.name == mechanism.window_scalar else _short(float(scalar.default(ROW_SITE)))
        for scalar in _weight_scalars(mechanism)
    }


def _short(value: float) -> float:
    return float(f"{value:.12g}")


def _scores(mechanism: Mechanism, cosines: Sequence[float], sharpness: float) -> tuple[float, ...]:
    return tuple(cosines) if mechanism.cosine_scores else tuple(sharpness * c for c in cosines)


def _cases(mechanism: Mechanism) -> Iterator[Case]:
    start = _scalars(mechanism)
    longest = ROWS[-1]
    for row in ROWS:
        yield _case(mechanism, row, start)
    yield _case(mechanism, longest, start, sharpness=8.0)
    yield _case(mechanism, longest, start, keep=[j % 3 != 0 for j in range(len(longest))])
    yield _case(mechanism, longest, start, keep=[False] * len(longest))
    for scalar in _weight_scalars(mechanism):
        for probe in scalar.probes:
            if math.isfinite(probe):
                yield _case(mechanism, longest, start | {scalar.name: probe})


def _case(
    mechanism: Mechanism,
    cosines: Sequence[float],
    scalars: Mapping[str, float],
    *,
    sharpness: float = math.sqrt(WIDTH),
    keep: Sequence[bool] | None = None,
) -> Case:
    scores = _scores(mechanism, cosines, sharpness)
    second = _scores(mechanism, SECOND[: len(cosines)], sharpness)
    kept = tuple(keep or (True,) * len(cosines))
    # Some near, some beyond the window. Where the order matters, keys end at the query.
    distance = None if mechanism.rule.ordered else tuple(3 * j % 8 for j in range(len(cosines)))
    weights = _weights(mechanism, scores, scalars, second=second, keep=kept, distance=distance)
    return Case(
        mechanism=mechanism.name,
        scores=tuple(map(_short, scores)),
        second=tuple(map(_short, second)) if mechanism.maps == 2 else (),
        keep=kept if keep else (),
        distance=distance if mechanism.window_scalar and distance else (),
        scalars=scalars,
        weights=tuple(map(_short, weights.tolist())),
    )


def _weights(
    mechanism: Mechanism,
    scores: Sequence[float],
    scalars: Mapping[str, float],
    *,
    second: Sequence[float] | None = None,
    keep: Sequence[bool] | None = None,
    distance: Sequence[int] | None = None,
) -> Tensor:
    exact = torch.tensor(scores, dtype=torch.float64)
    y = None if second is None else torch.tensor(second, dtype=torch.float64)
    return weigh(mechanism, exact, second=y, keep=keep, distance=distance, scalars=scalars)


def _preset_case(preset: Preset, mechanism: Mechanism) -> PresetCase:
    cosines = [*preset.cosines, *distractors(preset.crowd)]
    w = _weights(mechanism, _scores(mechanism, cosines, math.sqrt(WIDTH)), _scalars(mechanism))
    share = w.abs() / w.abs().sum().clamp_min(1e-300)
    return PresetCase(
        preset=preset.name,
        mechanism=mechanism.name,
        weights=tuple(map(_short, w[: len(preset.cosines)].tolist())),
        mass=_short(w.sum().item()),
        accepted=int((w != 0).sum()),
        entropy=_short(-torch.xlogy(share, share).sum().item() + 0.0),
    )


_SETTINGS: tuple[dict[str, float], ...] = (
    {"query": 60.0, "second": 110.0, "window": 12.0, "acceptance": 0.5, "lam": 0.5, "sharpness": 2.0},
    {"query": 60.0, "second": 20.0, "window": 300.0, "acceptance": 0.9, "lam": 0.9, "sharpness": 4.0},
    {"query": 200.0, "second": 110.0, "window": 40.0, "acceptance": 0.2, "lam": 0.5, "sharpness": 2.0},
)


def _scene(*, query: float, second: float, window: float, acceptance: float, lam: float, sharpness: float) -> Scene:
    angles, positions = (70.0, 40.0, 150.0, 260.0), (11, 9, 6, 2)
    values = ((1.0, 0.3), (-0.4, 0.9), (-0.8, -0.5), (0.5, -0.9))
    position = 11
    q = _unit_vectors([query, second])
    k, v = _unit_vectors(angles)[None, None], torch.tensor(values, dtype=torch.float64)[None, None]
    at = Positions.explicit(torch.tensor([position]), torch.tensor(positions))
    outputs = {
        "softmax": attend("softmax", q[None, None, :1], k, v, positions=at, scale=sharpness),
        "differential_v2": attend(
            "differential_v2", q[None, :, None], k, v, positions=at, scale=sharpness, scalars={"lam": lam}
        ),
        "screening": attend(
            "screening",
            q[None, None, :1],
            k,
            v,
            positions=at,
            scalars={"window": window, "acceptance": acceptance},
        ),
    }
    return Scene(
        query=query,
        second=second,
        position=position,
        angles=angles,
        positions=positions,
        values=values,
        window=window,
        acceptance=acceptance,
        lam=lam,
        sharpness=sharpness,
        outputs={name: (out[0, 0, 0, 0].item(), out[0, 0, 0, 1].item()) for name, out in outputs.items()},
    )


def _unit_vectors(degrees: Sequence[float]) -> Tensor:
    angle = torch.tensor(degrees, dtype=torch.float64) * (math.pi / 180)
    return torch.stack((angle.cos(), angle.sin()), dim=-1)
