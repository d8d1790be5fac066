"""Number format of pages and tables."""

import math

import pytest

from keysift.core.number import data_size, length, number, tick, time, time_tick


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1e-9, "1e-9"),
        (-0.0004, "-4e-4"),
        (0.0012, "0.00120"),
        (0.5, "0.500"),
        (-0.25, "-0.250"),
        (0.9999, "1.00"),
        (1.05, "1.05"),
        (99.96, "100"),
        (140.4, "140"),
        (22025.4, "22,025"),
        (987654321.0, "987,654,321"),
        (-3.2e12, "-3e12"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
    ],
)
def test_three_significant_digits(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.0, "2.00 s"), (0.0123, "12.3 ms"), (4.56e-5, "45.6 µs"), (123.4, "123 s")]
)
def test_time(seconds: float, text: str) -> None:
    assert time(seconds) == text


def test_axis_ticks() -> None:
    assert [tick(x) for x in (0, 0.5, 2.0, 1000.0, 2e6)] == ["0", "0.5", "2", "1,000", "2e+06"]
    assert [length(x) for x in (512, 1024, 131072, 2**20, 1500)] == ["512", "1K", "128K", "1M", "1,500"]
    assert [time_tick(x) for x in (10.0, 1.0, 1e-3, 1e-5)] == ["10 s", "1 s", "1 ms", "10 µs"]


def test_sizes_of_data() -> None:
    sizes = (0, 512, 3_100, 999_999, 640e6, 25.3e9, 4e12)
    assert [data_size(size) for size in sizes] == [
        *("0 bytes", "512 bytes", "3.1 kB", "1.0 MB", "640.0 MB", "25.3 GB", "4000.0 GB"),
    ]
