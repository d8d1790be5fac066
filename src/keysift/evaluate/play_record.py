"""What the playground carries: mechanisms, presets, and numbers its JavaScript must reproduce."""

from collections.abc import Mapping

from keysift.core.config import config


@config
class Dial:
    """A scalar of a mechanism, with the range its slider covers."""

    name: str
    meaning: str
    default: float
    low: float
    high: float


@config
class Playable:
    """One mechanism as the page needs it."""

    name: str
    title: str
    formula: str
    source: str
    absolute: bool
    cosine: bool  # its scores are cosines; all others read logits
    maps: int
    dials: tuple[Dial, ...]
    holds: tuple[str, ...]


@config
class Preset:
    """A situation to start from. Scores are cosines; `before` are the keys that were there a moment ago."""

    name: str
    title: str
    cosines: tuple[float, ...]
    before: tuple[float, ...] = ()
    crowd: int = 0


@config
class Case:
    """One row of scores and the weights Python gives it."""

    mechanism: str
    scores: tuple[float, ...]
    second: tuple[float, ...]
    keep: tuple[bool, ...]
    distance: tuple[int, ...]
    scalars: Mapping[str, float]
    weights: tuple[float, ...]


@config
class PresetCase:
    """What a mechanism makes of a preset: the weights of its own keys, and what the whole row adds up to."""

    preset: str
    mechanism: str
    weights: tuple[float, ...]
    mass: float
    accepted: int
    entropy: float


@config
class Scene:
    """The geometry view in numbers: unit vectors by angle, positions, values, and each mechanism's output."""

    query: float
    second: float
    position: int
    angles: tuple[float, ...]
    positions: tuple[int, ...]
    values: tuple[tuple[float, float], ...]
    window: float
    acceptance: float
    lam: float
    sharpness: float
    outputs: Mapping[str, tuple[float, float]]


@config
class Playground:
    version: str
    promises: Mapping[str, str]  # label and sentence
    mechanisms: tuple[Playable, ...]
    presets: tuple[Preset, ...]
    cases: tuple[Case, ...]
    preset_cases: tuple[PresetCase, ...]
    scenes: tuple[Scene, ...]
