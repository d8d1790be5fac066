"""RoPE's rates, and how pretrained models change them to read texts longer than they first learned from. Free of torch.

    none                                                          theta^(-2i/K)
    linear:factor=4                                               every rate divided by the factor
    llama3:factor=8,low=1,high=4,original=8192                    slow channels divided, fast ones kept, a ramp between
    yarn:factor=4,original=4096,fast=32,slow=1,attention=1.14     the same idea; queries and keys are longer too

Which rates are slow is told by how often a channel turns in `original`, the length of the first training: below `low`
(or `slow`) turns a rate is divided, above `high` (or `fast`) it is kept. YaRN is arXiv:2309.00071v2, section 3.
"""

import math
from collections.abc import Sequence

from keysift.core.config import config, from_dict
from keysift.core.errors import ConfigError

NONE = "none"
_LEAST, _MOST = 1e-9, 1e9  # no quotient of such numbers overflows or is zero


@config
class Unscaled:
    @property
    def length(self) -> float:
        """What queries and keys are multiplied by."""
        return 1.0

    def change(self, rates: Sequence[float], theta: float) -> list[float]:
        return list(rates)


@config
class Linear(Unscaled):
    factor: float

    def change(self, rates: Sequence[float], theta: float) -> list[float]:
        return [rate / self.factor for rate in rates]


@config
class Llama3(Unscaled):
    factor: float
    low: float
    high: float
    original: float

    def change(self, rates: Sequence[float], theta: float) -> list[float]:
        turns = [self.original * rate / (2 * math.pi) for rate in rates]
        kept = [min(1.0, max(0.0, (turn - self.low) / (self.high - self.low))) for turn in turns]
        return [rate * (share + (1 - share) / self.factor) for rate, share in zip(rates, kept, strict=True)]


@config
class Yarn(Unscaled):
    factor: float
    original: float
    fast: float = 32.0
    slow: float = 1.0
    attention: float | None = None
    """Of queries and keys; 0.1 ln(factor) + 1 if left out, as the paper proposes."""
    whole: float = 1.0
    """1: the ramp begins and ends at whole channels, as published; 0: between them."""

    @property
    def length(self) -> float:
        if self.attention is not None:
            return self.attention
        return 0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0

    def change(self, rates: Sequence[float], theta: float) -> list[float]:
        half = len(rates)
        first, last = (
            half * math.log(self.original / (2 * math.pi * turns), theta) for turns in (self.fast, self.slow)
        )
        if self.whole:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * half - 1)
        last = last + 0.001 if first == last else last
        divided = [min(1.0, max(0.0, (channel - first) / (last - first))) for channel in range(half)]
        return [rate * (1 - share + share / self.factor) for rate, share in zip(rates, divided, strict=True)]


_KINDS: dict[str, type[Unscaled]] = {NONE: Unscaled, "linear": Linear, "llama3": Llama3, "yarn": Yarn}


def read_scaling(text: str) -> Unscaled:
    """The scaling a text names, e.g. linear:factor=4."""
    name, _, rest = text.partition(":")
    if name not in _KINDS:
        raise ConfigError(f"RoPE is scaled by one of {', '.join(_KINDS)}, got {name!r}; write e.g. linear:factor=4")
    values: dict[str, float] = {}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        least = 0.0 if key == "whole" else _LEAST
        if not least <= number <= _MOST:
            raise ConfigError(
                f"RoPE scaling {text!r}: {key} must be a number from {least:g} to {_MOST:g}, got {value!r}"
            )
        values[key] = number
    found = from_dict(_KINDS[name], values)
    if isinstance(found, Llama3) and found.low >= found.high:
        raise ConfigError(f"RoPE scaling {text!r}: low must be below high")
    return found


def rates(width: int, theta: float, scaling: Unscaled) -> list[float]:
    """Radians per position of each pair of channels."""
    half = width // 2
    return scaling.change([theta ** -(channel / half) for channel in range(half)], theta)
