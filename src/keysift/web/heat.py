"""Heat maps as SVG: shares in cells with their numbers, and relevance maps, in which exact zeros are blank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keysift.web.page import safe

_LEFT, _TOP, _WIDE, _HIGH = 66, 24, 76, 44
_LEVELS = 12  # shades of a relevance map


@dataclass(frozen=True)
class Square:
    """A share from 0 to 1 and what stands below its percentage."""

    share: float
    note: str = ""


def heat_map(
    name: str,
    squares: Mapping[tuple[str, str], Square],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    labels: tuple[str, str],
    limit: int | None = None,
) -> str:
    """`squares` by (row, column); `labels` name rows and columns; `limit` draws a line after so many columns."""
    width, height = _LEFT + _WIDE * len(columns) + 12, _TOP + _HIGH * len(rows) + 44
    parts = [_text(_LEFT - 8, _TOP - 8, labels[0], "end", "tick")]
    for y, row in enumerate(rows):
        parts.append(_text(_LEFT - 8, _TOP + _HIGH * (y + 0.5) + 4, row, "end", "tick"))
        for x, column in enumerate(columns):
            if (row, column) in squares:
                parts.append(_square(_LEFT + _WIDE * x, _TOP + _HIGH * y, squares[row, column]))
    base = _TOP + _HIGH * len(rows)
    parts += [_text(_LEFT + _WIDE * (x + 0.5), base + 17, said, "middle", "tick") for x, said in enumerate(columns)]
    parts.append(_text(_LEFT + _WIDE * len(columns), base + 36, labels[1], "end", "tick"))
    if limit:
        at = _LEFT + _WIDE * limit
        parts.append(f"<path d='M{at} {_TOP - 6} V{base + 6}' stroke='var(--moved)' stroke-width='3'/>")
    return _svg(name, width, height, parts)


def _square(x: float, y: float, square: Square) -> str:
    share = min(max(square.share, 0.0), 1.0)
    ink = "var(--heat-low)" if share > 0.55 else "var(--ink)"
    shade = f"fill='var(--heat-high)' fill-opacity='{share:.3f}'"
    parts = [f"<rect x='{x}' y='{y}' width='{_WIDE}' height='{_HIGH}' {shade} stroke='var(--line)'/>"]
    middle = y + _HIGH / 2 + (-3 if square.note else 4)
    parts.append(_text(x + _WIDE / 2, middle, f"{100 * share:.0f}%", "middle", ink=ink))
    if square.note:
        parts.append(_text(x + _WIDE / 2, middle + 15, square.note, "middle", ink=ink, size=10))
    return "".join(parts)


def relevance_map(name: str, weights: Sequence[Sequence[float]], size: int = 180) -> str:
    """Queries down, keys across. The darkest shade is the largest weight; a weight of exactly zero leaves no mark, any
    other at least the lightest shade. Negative weights are drawn in the other colour."""
    most = max((abs(weight) for row in weights for weight in row), default=0.0) or 1.0
    runs: dict[tuple[bool, int], list[str]] = {}
    for y, row in enumerate(weights):
        shades = [None if w == 0 else (w < 0, max(1, round(abs(w) / most * _LEVELS))) for w in row]
        start = 0
        for x in range(1, len(shades) + 1):
            if x == len(shades) or shades[x] != shades[start]:
                shade = shades[start]
                if shade is not None:
                    runs.setdefault(shade, []).append(f"M{start} {y}h{x - start}v1h-{x - start}z")
                start = x
    length = len(weights)
    parts = [f"<rect width='{length}' height='{length}' fill='var(--heat-low)'/>"]
    for (negative, level), paths in sorted(runs.items()):
        colour = "var(--heat-under)" if negative else "var(--heat-high)"
        parts.append(f"<path d='{''.join(paths)}' fill='{colour}' fill-opacity='{level / _LEVELS:.2f}'/>")
    label = safe(name)
    return (
        f"<svg viewBox='0 0 {length} {length}' width='{size}' height='{size}' role='img' aria-label='{label}' "
        f"shape-rendering='crispEdges'><title>{safe(name)}</title>{''.join(parts)}</svg>"
    )


def _svg(name: str, width: float, height: float, parts: Sequence[str]) -> str:
    label = safe(name)
    return (
        f"<svg viewBox='0 0 {width} {height}' width='{width}' height='{height}' role='img' aria-label='{label}' "
        f"font-family='system-ui, sans-serif' font-size='13'>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, anchor: str, css: str = "", *, ink: str = "", size: int = 13) -> str:
    # The pages' style sheet gives text its colour, which an attribute could not change.
    style = f" style='fill:{ink}'" if ink else ""
    kind = f" class='{css}'" if css else ""
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-size='{size}'{kind}{style}>{safe(text)}</text>"
