"""Tables and plot of a benchmark show the numbers of the record."""

import xml.etree.ElementTree as ET

from keysift.bench.tables import markdown
from keysift.web.shared.benchmark_plot import curves, plot
from tests.bench.results import RESULT


def test_markdown_says_met_and_missed() -> None:
    text = markdown(RESULT)
    assert "| quick enough | 5.00x | at least 3x | **met** |" in text
    assert "| not quick enough | 2.00x | at least 3x | **missed** |" in text
    assert "| small enough | 60.0 MB | at most 64 MB | **met** |" in text
    assert "| not at this size | 1.00 | at most 1.05 | **other size** |" in text
    assert "- something was not measured" in text
    assert "`abc`" in text
    assert "a <fast> processor, 2 cores, 8 GB" in text
    row = "| 4,096 | screening, windows 2 .. 257 | 8 tiles | forward | 4.00 ms | dense definition: 800 ms "
    assert row + "| 200x (100 to 400) | 25.0% | 50.0% |" in text


def test_curves_join_rows_of_one_setting() -> None:
    assert curves(RESULT) == {
        "screening, no window": {1024: 0.002, 4096: 0.02},
        "SDPA": {1024: 0.01, 4096: 0.1},
        "screening, windows 2 .. 257": {1024: 0.001, 4096: 0.004, 16384: 0.016},
        "dense definition": {1024: 0.05, 4096: 0.8},
    }


def test_the_plot_is_a_complete_svg_file() -> None:
    svg = ET.fromstring(plot(RESULT))
    dots = list(svg.iter("{http://www.w3.org/2000/svg}circle"))
    assert len(dots) == sum(len(points) for points in curves(RESULT).values())
    assert "prefers-color-scheme: dark" in "".join(svg.itertext()), "readable in the dark too"
    assert "screening, no window" in "".join(svg.itertext())


def test_axes_of_the_plot() -> None:
    svg = ET.fromstring(plot(RESULT))
    lines = [
        [tuple(map(float, point.split(","))) for point in line.get("points", "").split()]
        for line in svg.iter("{http://www.w3.org/2000/svg}polyline")
    ]
    highest = [line[-1] for line in lines]
    assert highest[0][1] == min(y for _, y in highest), "the slowest comes first"
    for line in lines:
        assert line == sorted(line)
        assert [y for _, y in line] == sorted((y for _, y in line), reverse=True)
