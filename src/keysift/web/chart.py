"""One chart for every page: lines or dots over two axes, ticks on both, a legend below, values on hover.

Drawn as SVG in a page or as a file of its own; both follow light and dark. Wide enough for a desktop, and its letters
are still readable when it is scaled down to a phone.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from keysift.web.number import number, tick
from keysift.web.page import SERIES, safe, source

WIDTH, PLOT = 520, 280
LEFT, RIGHT, TOP, BELOW = 62, 28, 26, 46
LEGEND_ROW = 19
_LONGEST_NAME = 62  # letters that fit in the legend
_DASHES = ("6 3", "2 3", "8 3 2 3")
EMPTY = "<p>no numbers yet</p>"
FILE_STYLE = "svg { background: var(--page); } .tick { fill: var(--soft); } .grid { stroke: var(--line); }"


@dataclass(frozen=True)
class Axis:
    """`label` names the quantity and its unit; `show` writes a value on a tick; `marks` are ticks that stand for
    things counted, such as layers, with room around the first and the last; `ends` are values to be enclosed; `base`
    is that of a logarithmic axis, if it does not follow from the values."""

    label: str
    log: bool = False
    show: Callable[[float], str] = tick
    marks: Sequence[float] = ()
    ends: Sequence[float] = ()
    base: float | None = None


@dataclass(frozen=True)
class Line:
    """Points in the order they are joined; `joined=False` leaves dots alone.

    bars    lower and upper end of each point's error bar
    lost    places on the x axis where the value is off the chart: a cross at the upper edge
    width   of the stroke; a line that others may cover is seen below them if it is wider
    """

    name: str
    points: Sequence[tuple[float, float]]
    joined: bool = True
    dots: bool = True
    bars: Sequence[tuple[float, float]] = ()
    lost: Sequence[float] = ()
    width: float = 2


@dataclass(frozen=True)
class Scale:
    """Where a value lies between the two ends of an axis."""

    low: float
    high: float
    log: bool
    ticks: Sequence[float]

    def share(self, value: float) -> float:
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return (at - low) / (high - low)


def chart(
    name: str,
    lines: Sequence[Line],
    *,
    x: Axis,
    y: Axis,
    level: tuple[float, str] | None = None,
    limit: tuple[float, str] | None = None,
) -> str:
    """`name` is what a screen reader says; `level` is a horizontal line with its label, `limit` an upright one."""
    drawn = [line for line in (_drawable(line, x, y) for line in lines) if line.points or line.lost]
    ends = [end for line in drawn for bar in line.bars for end in bar]
    values = [p[1] for line in drawn for p in line.points] + ends + ([level[0]] if level else [])
    if not values:
        return EMPTY
    across = _scale([a for line in drawn for a in (*(p[0] for p in line.points), *line.lost)], x)
    up = _scale(values, y)
    parts = [_axes(across, up, x, y)]
    if limit and across.low <= limit[0] <= across.high:
        at = _x(across.share(limit[0]))
        parts.append(f"<path d='M{at:.1f} {TOP} V{TOP + PLOT}' stroke='var(--moved)' stroke-dasharray='5 4'/>")
        parts.append(_text(at + 5, TOP + PLOT - 7, limit[1], "start"))
    if level:
        at = _y(up.share(level[0]))
        parts.append(f"<path d='M{LEFT} {at:.1f} H{WIDTH - RIGHT}' stroke='var(--moved)' stroke-dasharray='5 4'/>")
        parts.append(_text(WIDTH - RIGHT - 4, at - 5, level[1], "end"))
    for place, line in enumerate(drawn):
        parts.append(_line(line, place, across, up, x))
    legend = drawn if len(drawn) > 1 else []
    for place, line in enumerate(legend):
        parts.append(_legend(line.name, place))
    height = TOP + PLOT + BELOW + LEGEND_ROW * len(legend)
    return (
        f"<svg viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}' role='img' "
        f"aria-label='{safe(name)}' font-family='system-ui, sans-serif' font-size='13' "
        f"fill='var(--ink)'>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def as_file(drawing: str) -> str:
    """A drawing as an SVG file that stands alone."""
    head, rest = drawing.removeprefix("<svg").split(">", 1)
    return f"<svg xmlns='http://www.w3.org/2000/svg'{head}><style>{source('colours.css')}{FILE_STYLE}</style>{rest}"


def _drawable(line: Line, x: Axis, y: Axis) -> Line:
    """Without what is not finite, or not positive on a logarithmic axis."""

    def fits(value: float, axis: Axis) -> bool:
        return math.isfinite(value) and (value > 0 or not axis.log)

    kept = [at for at, (a, b) in enumerate(line.points) if fits(a, x) and fits(b, y)]
    bars = [tuple(end if fits(end, y) else line.points[at][1] for end in line.bars[at]) for at in kept if line.bars]
    return replace(
        line,
        points=[line.points[at] for at in kept],
        bars=[(low, high) for low, high in bars],
        lost=[at for at in line.lost if fits(at, x)],
    )


def _scale(values: list[float], axis: Axis) -> Scale:
    if axis.marks:
        low, high = min(axis.marks), max(axis.marks)
        ends = (low / math.sqrt(2), high * math.sqrt(2)) if axis.log else (low - 0.5, high + 0.5)
        return Scale(*ends, axis.log, axis.marks)
    values = [*values, *axis.ends]
    low, high = min(values), max(values)
    ticks = _log_ticks(low, high, axis.base) if axis.log else _ticks(low, high)
    return Scale(ticks[0], ticks[-1], axis.log, ticks)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers that enclose `low` to `high`, three to seven of them."""
    rough = ((high - low) or abs(high) or 1.0) / 4
    size = 10.0 ** math.floor(math.log10(rough))
    step = size * next(m for m in (1, 2, 5, 10) if m * size >= rough * 0.999)
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return [round(n * step, 12) for n in range(first, last + 1)]


def _log_ticks(low: float, high: float, base: float | None = None) -> list[float]:
    """Powers of two where both ends are powers of two, else of ten, two to nine of them."""
    base = base or (2.0 if _powers_of_two(low, high) else 10.0)
    first, last = math.floor(math.log(low, base) + 1e-9), math.ceil(math.log(high, base) - 1e-9)
    step = max(1, math.ceil((last - first) / 8))
    return [base ** (first + step * n) for n in range(max(1, math.ceil((last - first) / step)) + 1)]


def _powers_of_two(low: float, high: float) -> bool:
    return low >= 1 and math.log2(low).is_integer() and math.log2(high).is_integer()


def _axes(across: Scale, up: Scale, x: Axis, y: Axis) -> str:
    parts = []
    for value in up.ticks:
        at = _y(up.share(value))
        parts.append(f"<path class='grid' d='M{LEFT} {at:.1f} H{WIDTH - RIGHT}'/>")
        parts.append(_text(LEFT - 7, at + 4.5, y.show(value), "end", "tick"))
    for value in across.ticks:
        at = _x(across.share(value))
        parts.append(f"<path class='grid' d='M{at:.1f} {TOP} V{TOP + PLOT}'/>")
        parts.append(_text(at, TOP + PLOT + 17, x.show(value), "middle", "tick"))
    parts.append(f"<path d='M{LEFT} {TOP} V{TOP + PLOT} H{WIDTH - RIGHT}' fill='none' stroke='var(--soft)'/>")
    parts.append(_text(WIDTH - RIGHT, TOP + PLOT + 37, x.label, "end", "tick"))
    parts.append(_text(LEFT, TOP - 10, y.label, "start", "tick"))
    return "\n".join(parts)


def _line(line: Line, place: int, across: Scale, up: Scale, x: Axis) -> str:
    at = [(_x(across.share(a)), _y(up.share(b))) for a, b in line.points]
    parts = []
    if line.joined:
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in at)
        drawn = f"fill='none' {_stroke(place)} stroke-width='{line.width:g}'"
        parts.append(f"<polyline points='{path}' {drawn}><title>{safe(line.name)}</title></polyline>")
    for (a, _), (low, high) in zip(at, line.bars, strict=False):
        bar = f"M{a:.1f} {_y(up.share(low)):.1f} V{_y(up.share(high)):.1f}"
        parts.append(f"<path class='bar' d='{bar}' stroke='{_colour(place)}' stroke-width='1.2'/>")
    for value in line.lost:
        cross = f"M{_x(across.share(value)) - 5:.1f} {TOP - 5} l10 10 m0 -10 l-10 10"
        said = safe(f"{line.name}: off the chart at {x.show(value)}")
        parts.append(f"<path class='lost' d='{cross}' {_stroke(place)} stroke-width='2'><title>{said}</title></path>")
    if line.dots:
        for (a, b), (value_x, value_y) in zip(at, line.points, strict=True):
            said = safe(f"{line.name}: {number(value_y)} at {x.show(value_x)}")
            dot = f"<circle cx='{a:.1f}' cy='{b:.1f}' r='3.5' fill='{_colour(place)}'>"
            parts.append(f"{dot}<title>{said}</title></circle>")
    return "\n".join(parts)


def _legend(name: str, place: int) -> str:
    y = TOP + PLOT + BELOW + 12 + LEGEND_ROW * place
    swatch = f"<path d='M{LEFT} {y - 4} h22' {_stroke(place)} stroke-width='3'/>"
    cut = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
    return swatch + _text(LEFT + 30, y, cut, "start")


def _stroke(place: int) -> str:
    """After eight lines the colours come again, dashed."""
    dash = f" stroke-dasharray='{_DASHES[(place // SERIES - 1) % len(_DASHES)]}'" if place >= SERIES else ""
    return f"stroke='{_colour(place)}'{dash}"


def _colour(place: int) -> str:
    return f"var(--s{place % SERIES})"


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
    return TOP + (1 - share) * PLOT


def _text(x: float, y: float, text: str, anchor: str, css: str = "") -> str:
    kind = f" class='{css}'" if css else ""
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'{kind}>{safe(text)}</text>"
