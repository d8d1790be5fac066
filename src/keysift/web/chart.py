"""One chart for every page: lines or dots over two axes, ticks on both, a legend below, values on hover.

Drawn as SVG in a page or as a file of its own; both follow light and dark. Wide enough for a desktop, and its letters
are still readable when it is scaled down to a phone.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from keysift.web.number import number, tick
from keysift.web.page import SERIES, source

WIDTH, PLOT = 520, 280
LEFT, RIGHT, TOP, BELOW = 62, 28, 26, 46
LEGEND_ROW = 19
_DASHES = ("6 3", "2 3", "8 3 2 3")
FILE_STYLE = "svg { background: var(--page); } .tick { fill: var(--soft); } .grid { stroke: var(--line); }"


@dataclass(frozen=True)
class Axis:
    """`label` names the quantity and its unit; `show` writes a value on a tick; `marks` are ticks that stand for
    things counted, such as layers, with room around the first and the last."""

    label: str
    log: bool = False
    show: Callable[[float], str] = tick
    marks: Sequence[float] = ()


@dataclass(frozen=True)
class Line:
    """Points in the order they are joined; `joined=False` leaves dots alone."""

    name: str
    points: Sequence[tuple[float, float]]
    joined: bool = True
    dots: bool = True


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


def chart(name: str, lines: Sequence[Line], *, x: Axis, y: Axis, level: tuple[float, str] | None = None) -> str:
    """`name` is what a screen reader says; `level` is a horizontal line with its label."""
    drawn = [Line(line.name, _visible(line.points, x, y), line.joined, line.dots) for line in lines]
    drawn = [line for line in drawn if line.points]
    if not drawn:
        return "<p>no numbers yet</p>"
    across = _scale([p[0] for line in drawn for p in line.points], x)
    up = _scale([p[1] for line in drawn for p in line.points] + ([level[0]] if level else []), y)
    parts = [_axes(across, up, x, y)]
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
        f"aria-label='{escape(name, quote=True)}' font-family='system-ui, sans-serif' font-size='13' "
        f"fill='var(--ink)'>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def as_file(drawing: str) -> str:
    """A drawing as an SVG file that stands alone."""
    head, rest = drawing.removeprefix("<svg").split(">", 1)
    return f"<svg xmlns='http://www.w3.org/2000/svg'{head}><style>{source('colours.css')}{FILE_STYLE}</style>{rest}"


def _visible(points: Sequence[tuple[float, float]], x: Axis, y: Axis) -> list[tuple[float, float]]:
    """Without what is not finite, or not positive on a logarithmic axis."""
    axes = (x, y)
    return [p for p in points if all(math.isfinite(v) and (v > 0 or not a.log) for v, a in zip(p, axes, strict=True))]


def _scale(values: list[float], axis: Axis) -> Scale:
    if axis.marks:
        return Scale(min(axis.marks) - 0.5, max(axis.marks) + 0.5, axis.log, axis.marks)
    ticks = _log_ticks(min(values), max(values)) if axis.log else _ticks(min(values), max(values))
    return Scale(ticks[0], ticks[-1], axis.log, ticks)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers that enclose `low` to `high`, three to seven of them."""
    rough = ((high - low) or abs(high) or 1.0) / 4
    size = 10.0 ** math.floor(math.log10(rough))
    step = size * next(m for m in (1, 2, 5, 10) if m * size >= rough * 0.999)
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return [round(n * step, 12) for n in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of two where both ends are powers of two, else of ten, two to nine of them."""
    base = 2.0 if _powers_of_two(low, high) else 10.0
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
        drawn = f"fill='none' {_stroke(place)} stroke-width='2'"
        parts.append(f"<polyline points='{path}' {drawn}><title>{escape(line.name)}</title></polyline>")
    if line.dots:
        for (a, b), (value_x, value_y) in zip(at, line.points, strict=True):
            said = escape(f"{line.name}: {number(value_y)} at {x.show(value_x)}")
            dot = f"<circle cx='{a:.1f}' cy='{b:.1f}' r='3.5' fill='{_colour(place)}'>"
            parts.append(f"{dot}<title>{said}</title></circle>")
    return "\n".join(parts)


def _legend(name: str, place: int) -> str:
    y = TOP + PLOT + BELOW + 12 + LEGEND_ROW * place
    swatch = f"<path d='M{LEFT} {y - 4} h22' {_stroke(place)} stroke-width='3'/>"
    return swatch + _text(LEFT + 30, y, name, "start")


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
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'{kind}>{escape(text)}</text>"
