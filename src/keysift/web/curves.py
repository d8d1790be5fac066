"""Curves and windows as inline SVG, from plain numbers."""

import math
from collections.abc import Mapping, Sequence
from html import escape

_WIDE, _HIGH, _LEFT, _BELOW = 640, 260, 48, 34
_COLOURS = ("#3b6fb6", "#c8402f", "#2f8f5b", "#8a5bb6", "#b6852f", "#4aa3a3", "#a34a7d", "#667788")
_STYLE = """
:root { color-scheme: light dark; }
body { margin: 0 auto; max-width: 56rem; padding: 2rem 1rem; font: 16px/1.5 system-ui, sans-serif; }
svg { max-width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: currentColor; }
"""


def curves(series: Mapping[str, Sequence[float]], *, points: int = 400) -> str:
    """One line for each series over its steps; what is no number is left out."""
    kept = {name: _thin(values, points) for name, values in series.items()}
    finite = [(x, y) for values in kept.values() for x, y in values]
    if not finite:
        return "<p>no numbers yet</p>"
    right = max(x for x, _ in finite)
    low, high = min(y for _, y in finite), max(y for _, y in finite)
    span = (high - low) or 1.0
    lines = [_frame(f"{low:.2f}", f"{high:.2f}", f"step {right}")]
    for number, (name, values) in enumerate(kept.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(f"{_x(x / right):.1f},{_y((y - low) / span):.1f}" for x, y in values)
        lines.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='1.5'/>")
        place = f"x='{_WIDE - 8}' y='{14 + 13 * number}' text-anchor='end'"
        lines.append(f"<text {place} style='fill:{colour}'>{escape(name)}</text>")
    return _svg("loss over steps", lines)


def windows(layers: Sequence[Sequence[float]], context: int) -> str:
    """A dot for each tile, one column a layer; the line marks the training length."""
    values = [value for layer in layers for value in layer]
    top = math.log(max([*values, context]) * 1.2)
    lines = [_frame("1", f"{math.exp(top):.0f}", f"layers 1 to {len(layers)}")]
    edge = _y(math.log(context) / top)
    lines.append(
        f"<line x1='{_LEFT}' x2='{_WIDE}' y1='{edge:.1f}' y2='{edge:.1f}' stroke='#c8402f' stroke-dasharray='4'/>"
    )
    lines.append(f"<text x='{_WIDE - 4}' y='{edge - 4:.1f}' text-anchor='end'>training length {context}</text>")
    for number, layer in enumerate(layers):
        for window in layer:
            x, y = _x((number + 0.5) / len(layers)), _y(math.log(max(window, 1.0)) / top)
            lines.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' fill='{_COLOURS[0]}' fill-opacity='.6'/>")
    return _svg("learned window of each tile", lines)


def curves_page(title: str, series: Mapping[str, Sequence[float]]) -> str:
    return (
        f"<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>{escape(title)}</title>"
        f"<style>{_STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n{curves(series)}\n</body></html>\n"
    )


def _thin(values: Sequence[float], points: int) -> list[tuple[int, float]]:
    """Means of stretches, so that a long run is still a small picture."""
    each = max(1, math.ceil(len(values) / points))
    found = []
    for start in range(0, len(values), each):
        part = [value for value in values[start : start + each] if math.isfinite(value)]
        if part:
            found.append((min(start + each, len(values)), sum(part) / len(part)))
    return found


def _x(share: float) -> float:
    return _LEFT + share * (_WIDE - _LEFT)


def _y(share: float) -> float:
    return 8 + (1 - share) * (_HIGH - _BELOW - 8)


def _frame(low: str, high: str, right: str) -> str:
    base = _y(0)
    return (
        f"<path d='M{_LEFT} 8 V{base} H{_WIDE}' fill='none' stroke='#8889'/>"
        f"<text x='{_LEFT - 6}' y='{base}' text-anchor='end'>{low}</text>"
        f"<text x='{_LEFT - 6}' y='16' text-anchor='end'>{high}</text>"
        f"<text x='{_WIDE - 4}' y='{base + 18}' text-anchor='end'>{right}</text>"
    )


def _svg(name: str, parts: list[str]) -> str:
    return f"<svg viewBox='0 0 {_WIDE} {_HIGH}' width='{_WIDE}' role='img' aria-label='{name}'>{''.join(parts)}</svg>"
