"""Data of the playground: mechanisms, presets, and reference values that its JavaScript must reproduce."""

from collections.abc import Mapping

from keysift.core.config import config


@config
class Dial:
    """A scalar of a mechanism with the range of its slider."""

    name: str
    meaning: str
    default: float
    low: float
    high: float


@config
class Playable:
    """A mechanism of the page."""

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
    """A set of keys to start from. Scores are cosines; `before` are the keys shown for comparison."""

    name: str
    title: str
    cosines: tuple[float, ...]
    before: tuple[float, ...] = ()
    crowd: int = 0


@config
class Case:
    """A row of scores with reference weights."""

    mechanism: str
    scores: tuple[float, ...]
    second: tuple[float, ...]
    keep: tuple[bool, ...]
    distance: tuple[int, ...]
    scalars: Mapping[str, float]
    weights: tuple[float, ...]


@config
class PresetCase:
    """Reference weights of a mechanism on a preset, with statistics of the whole row."""

    preset: str
    mechanism: str
    weights: tuple[float, ...]
    mass: float
    accepted: int
    entropy: float


@config
class Scene:
    """Reference values of the geometry view: unit vectors by angle, positions, values and outputs."""

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
    """Everything that the page embeds."""

    version: str
    promises: Mapping[str, str]  # sentence by label
    mechanisms: tuple[Playable, ...]
    presets: tuple[Preset, ...]
    cases: tuple[Case, ...]
    preset_cases: tuple[PresetCase, ...]
    scenes: tuple[Scene, ...]
