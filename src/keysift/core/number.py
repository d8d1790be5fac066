"""One format for numbers and times, on every page and in every table."""

import math
from collections.abc import Callable


def number(value: float) -> str:
    """Format with three significant digits. "0" means exactly zero; tiny and huge values use an exponent ("1e-9").

    web/shared/number.js does the same.
    """
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if value == 0:
        return "0"
    power = int(f"{value:.2e}".split("e")[1])  # after rounding: 0.9999 is 1.00
    if not -3 <= power <= 8:
        digits, exponent = f"{value:.0e}".split("e")
        return f"{digits}e{int(exponent)}"
    return f"{value:,.{max(0, 2 - power)}f}"


def tick(value: float) -> str:
    """A round number on an axis: 0.5, 2, 1,000."""
    return f"{value:,.6g}" if value == 0 or 1e-4 <= abs(value) < 1e6 else f"{value:.6g}"


def length(tokens: float) -> str:
    """A number of tokens on an axis, where powers of two are round: 512, 4K, 1M."""
    for size, letter in ((2**20, "M"), (2**10, "K")):
        if tokens >= size and tokens % size == 0:
            return f"{tokens / size:g}{letter}"
    return tick(tokens)


def data_size(count: float) -> str:
    """A number of bytes: 512 bytes, 3.1 kB, 25.3 GB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.9995 * size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"


def time(seconds: float, show: Callable[[float], str] = number) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.9999 * size:
            return f"{show(seconds / size)} {unit}"
    return f"{show(seconds / 1e-6)} µs"


def time_tick(seconds: float) -> str:
    return time(seconds, tick)
