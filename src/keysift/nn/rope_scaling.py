"""Frequencies of RoPE, and the scalings that pretrained models use for longer contexts. Free of torch.

    none                                                          theta^(-2i/K)
    linear:factor=4                                               every frequency divided by the factor
    llama3:factor=8,low=1,high=4,original=8192                    low frequencies divided, high ones kept, ramp between
    yarn:factor=4,original=4096,fast=32,slow=1,attention=1.14     the same, and queries and keys are scaled as well

A frequency is classified by the number of rotations within `original`, the first training length: below `low` (`slow`)
rotations it is divided by the factor, above `high` (`fast`) it is kept. YaRN is arXiv:2309.00071v2, section 3.
"""

import math
from collections.abc import Sequence

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
class Yarn(Unscaled):
    """YaRN."""

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


_KINDS: dict[str, type[Unscaled]] = {NONE: Unscaled, "linear": Linear, "llama3": Llama3, "yarn": Yarn}


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


def rotary_frequencies(width: int, theta: float, scaling: Unscaled) -> list[float]:
    """Radians per position, for each pair of channels."""
    half = width // 2
    return scaling.scale([theta ** -(channel / half) for channel in range(half)], theta)
