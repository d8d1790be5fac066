"""The line chart of every page: lines or dots over two axes, with ticks, a legend and values on hover.

Drawn as SVG, inside a page or as a file of its own; both follow the light and the dark colour scheme. The text stays
readable when a chart is scaled down to the width of a phone.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from keysift.core.number import number, tick
from keysift.web.shared.labels import text_width, wrapped
from keysift.web.shared.page import SERIES, safe, source

WIDTH, PLOT = 520, 280
LEFT, RIGHT, TOP, BELOW = 62, 28, 26, 46
LEGEND_ROW = 19
DASHES = ("", "6 3", "2 3", "8 3 2 3", "12 4", "1 4")
MARKERS = (  # around the origin; the first is a circle
    "",
    "M-3.5 -3.5h7v7h-7z",
    "M0 -5l5 5l-5 5l-5 -5z",
    "M0 -4.5l5 8.5h-10z",
    "M-4 -1.5h2.5v-2.5h3v2.5h2.5v3h-2.5v2.5h-3v-2.5h-2.5z",
)
EMPTY = "<p>no data yet</p>"
Box = tuple[float, float, float, float]  # left, top, right, bottom
FILE_STYLE = "svg { background: var(--page); } .tick { fill: var(--soft); } .grid { stroke: var(--line); }"


@dataclass(frozen=True)
class Axis:
    """One axis of a chart.

    label    quantity and unit
    format   writes a value at its tick
    ticks    fixed ticks for counted things such as layers; the axis extends beyond the first and the last
    include  values the axis must cover
    base     base of a logarithmic axis; by default it follows from the values
    """

    label: str
    log: bool = False
    format: Callable[[float], str] = tick
    ticks: Sequence[float] = ()
    include: Sequence[float] = ()
    base: float | None = None


@dataclass(frozen=True)
class Line:
    """Points in the order they are joined; `joined=False` draws dots only.

    bars       lower and upper end of the error bar of each point; a band if the line has no dots
    off_chart  x values whose y value is too large to draw, marked by a cross at the upper edge
    width      of the stroke; a wider line stays visible below the lines that cover it
    colour     number of the series colour; by default the place of the line in its chart
    dash       number of the dash pattern; 0 is solid
    marker     number of the shape of the dots; 0 is a circle
    """

    name: str
    points: Sequence[tuple[float, float]]
    joined: bool = True
    dots: bool = True
    bars: Sequence[tuple[float, float]] = ()
    off_chart: Sequence[float] = ()
    width: float = 2
    colour: int | None = None
    dash: int = 0
    marker: int = 0

    @property
    def css_colour(self) -> str:
        return f"var(--s{(self.colour or 0) % SERIES})"

    @property
    def stroke(self) -> str:
        dash = DASHES[self.dash % len(DASHES)]
        return f"stroke='{self.css_colour}'" + (f" stroke-dasharray='{dash}'" if dash else "")


@dataclass(frozen=True)
class Scale:
    """Range of an axis; maps a value to its fraction of the axis."""

    low: float
    high: float
    log: bool
    ticks: Sequence[float]

    def fraction(self, value: float) -> float:
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
    """Draw lines as SVG.

    `name` is the label for screen readers. `level` is a dashed horizontal line with its label, `limit` a vertical one.
    """
    lines = [line for line in (_drawable(line, x, y) for line in lines) if line.points or line.off_chart]
    # After eight lines the colours repeat, dashed.
    lines = [
        replace(line, colour=index, dash=index // SERIES) if line.colour is None else line
        for index, line in enumerate(lines)
    ]
    bar_ends = [end for line in lines for bar in line.bars for end in bar]
    values = [p[1] for line in lines for p in line.points] + bar_ends + ([level[0]] if level else [])
    if not values:
        return EMPTY
    x_scale = _scale([a for line in lines for a in (*(p[0] for p in line.points), *line.off_chart)], x)
    y_scale = _scale(values, y)
    parts = [_axes(x_scale, y_scale, x, y)]
    taken: Box | None = None
    if limit and x_scale.low <= limit[0] <= x_scale.high:
        drawing, taken = _limit(_x(x_scale.fraction(limit[0])), limit[1])
        parts.append(drawing)
    if level:
        parts.append(_level(_y(y_scale.fraction(level[0])), level[1], taken))
    parts += [_line(line, x_scale, y_scale, x) for line in lines]
    rows = 0
    for line in lines if len(lines) > 1 else []:
        drawing, used = _legend(line, rows)
        parts.append(drawing)
        rows += used
    height = TOP + PLOT + BELOW + LEGEND_ROW * rows
    return (
        f"<svg viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}' role='img' "
        f"aria-label='{safe(name)}' font-family='system-ui, sans-serif' font-size='13' "
        f"fill='var(--ink)'>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def chart_or_values(name: str, lines: Sequence[Line], *, x: Axis, y: Axis) -> str:
    """Draw lines; where no line has two points, list the values instead of a chart of single dots."""
    drawable = [_drawable(line, x, y) for line in lines]
    if any(len(line.points) + len(line.off_chart) > 1 for line in drawable) or not any(d.points for d in drawable):
        return chart(name, lines, x=x, y=y)
    values = "".join(
        f"<li>{safe(line.name)}: {number(value)} at {safe(x.label)} {safe(x.format(at))}</li>"
        for line in drawable
        for at, value in line.points
    )
    return f"<p>{safe(y.label)}:</p>\n<ul>{values}</ul>\n"


def svg_file(drawing: str) -> str:
    """Turn a drawing into the text of an SVG file, style included."""
    head, rest = drawing.removeprefix("<svg").split(">", 1)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg'{head}><style>{source('shared/colours.css')}{FILE_STYLE}</style>{rest}"
    )


def _drawable(line: Line, x: Axis, y: Axis) -> Line:
    """Drop points that are not finite, or not positive on a logarithmic axis."""

    def fits(value: float, axis: Axis) -> bool:
        return math.isfinite(value) and (value > 0 or not axis.log)

    drawable = [at for at, (a, b) in enumerate(line.points) if fits(a, x) and fits(b, y)]
    bars = [tuple(end if fits(end, y) else line.points[at][1] for end in line.bars[at]) for at in drawable if line.bars]
    return replace(
        line,
        points=[line.points[at] for at in drawable],
        bars=[(low, high) for low, high in bars],
        off_chart=[at for at in line.off_chart if fits(at, x)],
    )


def _scale(values: list[float], axis: Axis) -> Scale:
    if axis.ticks:
        low, high = min(axis.ticks), max(axis.ticks)
        ends = (low / math.sqrt(2), high * math.sqrt(2)) if axis.log else (low - 0.5, high + 0.5)
        return Scale(*ends, axis.log, axis.ticks)
    values = [*values, *axis.include]
    low, high = min(values), max(values)
    ticks = _log_ticks(low, high, axis.base) if axis.log else _ticks(low, high)
    return Scale(ticks[0], ticks[-1], axis.log, ticks)


def _ticks(low: float, high: float) -> list[float]:
    """Return three to seven round numbers that enclose the range."""
    rough = ((high - low) or abs(high) or 1.0) / 4
    size = 10.0 ** math.floor(math.log10(rough))
    step = size * next(m for m in (1, 2, 5, 10) if m * size >= rough * 0.999)
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return [round(n * step, 12) for n in range(first, last + 1)]


def _log_ticks(low: float, high: float, base: float | None = None) -> list[float]:
    """Return two to nine powers of ten that enclose the range; powers of two if both ends are powers of two."""
    base = base or (2.0 if _are_powers_of_two(low, high) else 10.0)
    first, last = math.floor(math.log(low, base) + 1e-9), math.ceil(math.log(high, base) - 1e-9)
    step = max(1, math.ceil((last - first) / 8))
    return [base ** (first + step * n) for n in range(max(1, math.ceil((last - first) / step)) + 1)]


def _are_powers_of_two(low: float, high: float) -> bool:
    return low >= 1 and math.log2(low).is_integer() and math.log2(high).is_integer()


def _axes(x_scale: Scale, y_scale: Scale, x: Axis, y: Axis) -> str:
    parts = []
    for value in y_scale.ticks:
        at = _y(y_scale.fraction(value))
        parts.append(f"<path class='grid' d='M{LEFT} {at:.1f} H{WIDTH - RIGHT}'/>")
        parts.append(_text(LEFT - 7, at + 4.5, y.format(value), "end", "tick"))
    labelled = _labelled_ticks(x_scale, x)
    for value in x_scale.ticks:
        at = _x(x_scale.fraction(value))
        parts.append(f"<path class='grid' d='M{at:.1f} {TOP} V{TOP + PLOT}'/>")
        if value in labelled:
            parts.append(_text(at, TOP + PLOT + 17, x.format(value), "middle", "tick"))
    parts.append(f"<path d='M{LEFT} {TOP} V{TOP + PLOT} H{WIDTH - RIGHT}' fill='none' stroke='var(--soft)'/>")
    parts.append(_text(WIDTH - RIGHT, TOP + PLOT + 37, x.label, "end", "tick"))
    parts.append(_text(LEFT, TOP - 10, y.label, "start", "tick"))
    return "\n".join(parts)


def _labelled_ticks(scale: Scale, axis: Axis) -> Sequence[float]:
    """The ticks with a label: all, or every second, third and so on if the labels would overlap."""
    widest = max(text_width(axis.format(value)) for value in scale.ticks) + 8
    for every in range(1, len(scale.ticks)):
        ticks = scale.ticks[::every]
        places = [_x(scale.fraction(value)) for value in ticks]
        if all(right - left >= widest for left, right in pairwise(places)):
            return ticks
    return scale.ticks[:1]


def _limit(at: float, label: str) -> tuple[str, Box]:
    """A vertical line with its label at the bottom, on the side that has room; also the box of the label."""
    width = text_width(label)
    left = at + 5 if at + 5 + width <= WIDTH - RIGHT else at - 5 - width
    line = f"<path d='M{at:.1f} {TOP} V{TOP + PLOT}' stroke='var(--moved)' stroke-dasharray='5 4'/>"
    y = TOP + PLOT - 7
    box = (left, y - 12.0, left + width, y + 4.0)
    anchor, x = ("start", left) if left > at else ("end", at - 5)
    return line + _text(x, y, label, anchor), box


def _level(at: float, label: str, taken: Box | None) -> str:
    """A horizontal line with its label above or below it, at the right or the left, where no other label is."""
    width = text_width(label)
    rows = [y for y in (at - 5, at + 15) if TOP + 12 <= y <= TOP + PLOT - 4] or [at - 5]
    places = [(x, y) for x in (WIDTH - RIGHT - 4.0, LEFT + 4.0 + width) for y in rows]
    free = [(x, y) for x, y in places if not _overlap((x - width, y - 12, x, y + 4), taken)] or places
    line = f"<path d='M{LEFT} {at:.1f} H{WIDTH - RIGHT}' stroke='var(--moved)' stroke-dasharray='5 4'/>"
    return line + _text(*free[0], label, "end")


def _overlap(a: Box, b: Box | None) -> bool:
    return b is not None and a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _line(line: Line, x_scale: Scale, y_scale: Scale, x: Axis) -> str:
    pixels = [(_x(x_scale.fraction(a)), _y(y_scale.fraction(b))) for a, b in line.points]
    bars = [(_y(y_scale.fraction(low)), _y(y_scale.fraction(high))) for low, high in line.bars]
    parts = []
    if bars and not line.dots:
        edge = [f"{a:.1f},{high:.1f}" for (a, _), (_, high) in zip(pixels, bars, strict=True)]
        edge += [f"{a:.1f},{low:.1f}" for (a, _), (low, _) in reversed(list(zip(pixels, bars, strict=True)))]
        parts.append(f"<polygon class='band' points='{' '.join(edge)}' fill='{line.css_colour}' fill-opacity='0.18'/>")
    if line.joined:
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in pixels)
        stroke = f"fill='none' {line.stroke} stroke-width='{line.width:g}'"
        parts.append(f"<polyline points='{path}' {stroke}><title>{safe(line.name)}</title></polyline>")
    for (a, _), (low, high) in zip(pixels, bars, strict=True) if bars and line.dots else ():
        bar = f"M{a:.1f} {low:.1f} V{high:.1f}"
        parts.append(f"<path class='bar' d='{bar}' stroke='{line.css_colour}' stroke-width='1.2'/>")
    for value in line.off_chart:
        cross = f"M{_x(x_scale.fraction(value)) - 5:.1f} {TOP - 5} l10 10 m0 -10 l-10 10"
        label = safe(f"{line.name}: off the chart at {x.format(value)}")
        parts.append(f"<path class='lost' d='{cross}' {line.stroke} stroke-width='2'><title>{label}</title></path>")
    if line.dots:
        for (a, b), (value_x, value_y) in zip(pixels, line.points, strict=True):
            parts.append(_marker(line, a, b, f"{line.name}: {number(value_y)} at {x.format(value_x)}"))
    return "\n".join(parts)


def _marker(line: Line, x: float, y: float, title: str = "") -> str:
    shape = MARKERS[line.marker % len(MARKERS)]
    content = f"<title>{safe(title)}</title>" if title else ""
    if not shape:
        return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.5' fill='{line.css_colour}'>{content}</circle>"
    place = f"transform='translate({x:.1f} {y:.1f})'"
    return f"<path class='marker' d='{shape}' {place} fill='{line.css_colour}'>{content}</path>"


def _legend(line: Line, row: int) -> tuple[str, int]:
    """A swatch with the name of the line, and the number of rows it takes: long names are wrapped."""
    y = TOP + PLOT + BELOW + 12 + LEGEND_ROW * row
    swatch = f"<path d='M{LEFT - 40} {y - 4} h34' {line.stroke} stroke-width='3'/>"
    if line.dots and line.marker:
        swatch += _marker(line, LEFT - 23, y - 4)
    rows = wrapped(line.name, WIDTH - LEFT - 4)
    texts = [_text(LEFT, y + LEGEND_ROW * index, text, "start") for index, text in enumerate(rows)]
    return swatch + "".join(texts), len(rows)


def _x(fraction: float) -> float:
    return LEFT + fraction * (WIDTH - LEFT - RIGHT)


def _y(fraction: float) -> float:
    return TOP + (1 - fraction) * PLOT


def _text(x: float, y: float, text: str, anchor: str, css: str = "") -> str:
    kind = f" class='{css}'" if css else ""
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'{kind}>{safe(text)}</text>"
