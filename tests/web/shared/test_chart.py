"""Line chart: positions of points, ticks on both axes, labels that do not depend on colour."""

import math
import xml.etree.ElementTree as ET

import pytest

from keysift.web.shared.chart import LEFT, PLOT, RIGHT, TOP, WIDTH, Axis, Line, _log_ticks, _ticks, chart, svg_file
from keysift.web.shared.training_charts import loss_chart, loss_points, window_chart

SVG = "{http://www.w3.org/2000/svg}"
LINEAR = {"x": Axis("step"), "y": Axis("loss")}


def parse(svg: str) -> ET.Element:
    return ET.fromstring(svg_file(svg))


def circles(svg: str) -> list[tuple[float, float]]:
    return [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in parse(svg).iter(f"{SVG}circle")]


def test_points_are_placed_by_their_values() -> None:
    (x0, y0), (x1, y1), (x2, y2) = circles(chart("c", [Line("a", [(0, 0.0), (5, 2.0), (10, 4.0)])], **LINEAR))
    assert (x0, x2, y2, y0) == (LEFT, WIDTH - RIGHT, TOP, TOP + PLOT)
    assert (x1, y1) == pytest.approx(((x0 + x2) / 2, (y0 + y2) / 2), abs=0.1)
    log = {"x": Axis("T", log=True), "y": Axis("s", log=True)}
    (_, _), (x1, y1), (_, _) = circles(chart("c", [Line("a", [(1, 0.01), (10, 0.1), (100, 1.0)])], **log))
    assert (x1, y1) == pytest.approx(((x0 + x2) / 2, (y0 + y2) / 2), abs=0.1)


def test_points_that_cannot_be_drawn_are_left_out() -> None:
    assert len(circles(chart("c", [Line("a", [(1, math.nan), (2, 1.0), (3, math.inf), (4, 2.0)])], **LINEAR))) == 2
    log = chart("c", [Line("a", [(0, 1.0), (1, 1.0), (2, 0.0), (3, 5.0)])], x=Axis("x"), y=Axis("y", log=True))
    assert len(circles(log)) == 3
    assert chart("c", [Line("a", [(1, math.nan)])], **LINEAR) == "<p>no data yet</p>"


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 10, [0, 5, 10]),
        (2.1, 7.9, [2, 4, 6, 8]),
        (0.31, 0.34, [0.31, 0.32, 0.33, 0.34]),
        (3, 3, [3, 4]),
        (0, 0, [0, 1]),
    ],
)
def test_ticks_are_round_and_enclose_the_range(low: float, high: float, ticks: list[float]) -> None:
    computed = _ticks(low, high)
    assert computed[0] <= low
    assert computed[-1] >= high
    assert 2 <= len(computed) <= 7
    assert computed[: len(ticks)] == pytest.approx(ticks) or (low == high and len(computed) >= 2)


def test_logarithmic_ticks() -> None:
    assert _log_ticks(1024, 16384) == [1024, 2048, 4096, 8192, 16384]
    assert _log_ticks(0.002, 3.0) == pytest.approx([0.001, 0.01, 0.1, 1, 10])
    assert _log_ticks(100, 100) == pytest.approx([100, 1000])
    assert len(_log_ticks(1024, 2**20)) <= 9


def test_axes_have_ticks_and_lines_have_names() -> None:
    lines = [Line(f"run {number}", [(1, 1.0), (2, 2.0 + number)]) for number in range(9)]
    svg = parse(chart("several <runs>", lines, **LINEAR))
    texts = [text.text for text in svg.iter(f"{SVG}text")]
    assert {"step", "loss", "1", "2", "run 0", "run 8"} <= set(texts)
    assert svg.get("aria-label") == "several <runs>"
    titles = [title.text for title in svg.iter(f"{SVG}title")]
    assert "run 3: 5.00 at 2" in titles
    strokes = {(p.get("stroke"), p.get("stroke-dasharray")) for p in svg.iter(f"{SVG}polyline")}
    assert len(strokes) == 9, "the ninth line repeats the first colour, dashed"


def test_loss_and_window_charts() -> None:
    assert loss_points([3.0, math.nan, 1.0]) == [(1.0, 3.0), (3.0, 1.0)]
    assert loss_points([4.0, 2.0, 3.0, 1.0], max_points=2) == [(2.0, 3.0), (4.0, 2.0)]
    assert len(circles(loss_chart({"a": [(1, 2.0), (2, 1.0)]}))) == 2
    windows = window_chart([[2.0, 300.0], [5.0, 7.0]], 128)
    assert len(circles(windows)) == 4
    assert "training length 128" in windows
