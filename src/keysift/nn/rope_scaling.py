"""Frequencies of RoPE, and scalings for contexts longer than those of training. Free of torch.

    none                                                          theta^(-2i/K)
    linear:factor=4                                               every frequency divided by the factor
    ntk:factor=4                                                  theta times factor^(K/(K-2))
    llama3:factor=8,low=1,high=4,original=8192                    low frequencies divided, high ones kept, ramp between
    ntk_by_parts:factor=4,original=4096                           llama3 with low=1 and high=32
    yarn:factor=4,original=4096,fast=32,slow=1,attention=1.14     a ramp over channels, and queries and keys are scaled

A frequency is classified by the number of rotations within `original`, the first training length: below `low` (`slow`)
rotations it is divided by the factor, above `high` (`fast`) it is kept. llama3 and ntk_by_parts have a ramp that is
linear in the number of rotations, as arXiv:2309.00071v2 prints it (section 3.2). yarn has the ramp of the reference
code (jquesnelle/yarn), which is linear in the channel: it ends at the same frequencies and differs between them.
"""

import math
from collections.abc import Sequence
from dataclasses import fields

from keysift.core.config import config, from_dict
from keysift.core.errors import ConfigError

NONE = "none"
_MIN, _MAX = 1e-9, 1e9  # quotients of numbers in this range neither overflow nor underflow


@config
class Unscaled:
    """Plain RoPE, and the interface of a scaling."""

    @property
    def attention_factor(self) -> float:
        """Factor that multiplies queries and keys."""
        return 1.0

    def scale(self, frequencies: Sequence[float], theta: float) -> list[float]:
        return list(frequencies)


@config
class Linear(Unscaled):
    """Position interpolation."""

    factor: float

    def scale(self, frequencies: Sequence[float], theta: float) -> list[float]:
        return [frequency / self.factor for frequency in frequencies]


@config
class Ntk(Unscaled):
    """NTK-aware scaling: the lowest frequency is divided by the factor, the highest is kept."""

    factor: float

    def scale(self, frequencies: Sequence[float], theta: float) -> list[float]:
        last = max(len(frequencies) - 1, 1)
        return [frequency * self.factor ** -(channel / last) for channel, frequency in enumerate(frequencies)]


@config
class Llama3(Unscaled):
    """The scaling of Llama 3.1."""

    factor: float
    low: float
    high: float
    original: float

    def scale(self, frequencies: Sequence[float], theta: float) -> list[float]:
        rotations = [self.original * frequency / (2 * math.pi) for frequency in frequencies]
        ramp = [min(1.0, max(0.0, (n - self.low) / (self.high - self.low))) for n in rotations]
        return [f * (kept + (1 - kept) / self.factor) for f, kept in zip(frequencies, ramp, strict=True)]


@config
class NtkByParts(Llama3):
    """NTK-by-parts, as printed in arXiv:2309.00071v2."""

    low: float = 1.0
    high: float = 32.0


@config
class Yarn(Unscaled):
    """YaRN, as in its reference code."""

    factor: float
    original: float
    fast: float = 32.0
    slow: float = 1.0
    attention: float | None = None
    """Factor of queries and keys. Default: 0.1 ln(factor) + 1, as the paper proposes."""
    whole: float = 1.0
    """1 rounds the ends of the ramp to whole channels, as published; 0 does not."""

    @property
    def attention_factor(self) -> float:
        if self.attention is not None:
            return self.attention
        return 0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0

    def scale(self, frequencies: Sequence[float], theta: float) -> list[float]:
        half = len(frequencies)
        first, last = (half * math.log(self.original / (2 * math.pi * n), theta) for n in (self.fast, self.slow))
        if self.whole:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * half - 1)
        last = last + 0.001 if first == last else last
        ramp = [min(1.0, max(0.0, (channel - first) / (last - first))) for channel in range(half)]
        return [f * (1 - divided + divided / self.factor) for f, divided in zip(frequencies, ramp, strict=True)]


_KINDS: dict[str, type[Unscaled]] = {
    NONE: Unscaled,
    "linear": Linear,
    "ntk": Ntk,
    "llama3": Llama3,
    "ntk_by_parts": NtkByParts,
    "yarn": Yarn,
}


def parse_scaling(text: str) -> Unscaled:
    """Parse the text form of a scaling, e.g. linear:factor=4."""
    name, _, rest = text.partition(":")
    if name not in _KINDS:
        raise ConfigError(
            f"the RoPE scaling must be one of {', '.join(_KINDS)}, got {name!r}; write e.g. linear:factor=4"
        )
    values: dict[str, float] = {}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        minimum = 0.0 if key == "whole" else _MIN
        if not minimum <= number <= _MAX:
            raise ConfigError(
                f"RoPE scaling {text!r}: {key} must be a number from {minimum:g} to {_MAX:g}, got {value!r}"
            )
        values[key] = number
    scaling = from_dict(_KINDS[name], values)
    if isinstance(scaling, Llama3) and scaling.low >= scaling.high:
        raise ConfigError(f"RoPE scaling {text!r}: low must be below high")
    return scaling


def with_original(text: str, length: int) -> str:
    """The text form of a scaling with original=length added, if the scaling has that value and the text does not."""
    name, _, rest = text.partition(":")
    known = {field.name for field in fields(_KINDS[name])} if name in _KINDS else set()
    given = {part.partition("=")[0] for part in rest.split(",")}
    return text if "original" not in known - given else f"{text}{',' if rest else ':'}original={length}"


def rotary_frequencies(width: int, theta: float, scaling: Unscaled) -> list[float]:
    """Radians per position, for each pair of channels."""
    half = width // 2
    return scaling.scale([theta ** -(channel / half) for channel in range(half)], theta)
