"""Plot of a benchmark: seconds of a forward pass by length, as an SVG file."""

from collections import Counter

from keysift.core.number import length, time_tick
from keysift.records.bench import Result
from keysift.web.shared.chart import Axis, Line, chart, svg_file

TITLE = "seconds of a forward pass over tokens, both axes logarithmic"
MAX_LINES = 12  # more lines cannot be told apart
Points = dict[int, float]


def curves(result: Result) -> dict[str, Points]:
    """Seconds of a forward pass by length of every case, at the setting that most rows share."""
    forward = [row for row in result.rows if row.step == "forward"]
    lines: dict[str, Points] = {}
    if not forward:
        return lines
    common = Counter(row.setting for row in forward).most_common(1)[0][0]
    for row in forward:
        if row.setting != common:
            continue
        lines.setdefault(row.what, {}).setdefault(row.tokens, row.seconds.median)
        if row.their_seconds is not None:
            lines.setdefault(row.against, {}).setdefault(row.tokens, row.their_seconds.median)
    several = {name: dict(sorted(points.items())) for name, points in lines.items() if len(points) > 1}
    return several if len(several) <= MAX_LINES else {}


def plot(result: Result) -> str:
    """The plot as an SVG file, with logarithmic axes."""
    by_slowest = sorted(curves(result).items(), key=lambda line: -max(line[1].values()))
    lines = [Line(name, list(points.items())) for name, points in by_slowest]
    return svg_file(
        chart(
            TITLE, lines, x=Axis("tokens", log=True, format=length), y=Axis("forward pass", log=True, format=time_tick)
        )
    )
