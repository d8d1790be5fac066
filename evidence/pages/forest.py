"""A forest plot: one row per question with its effect and 95% interval, grouped by the unit of the effect."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evidence.claims.verdict import Verdict
from evidence.study import RuleName, Study
from keysift.core.number import tick
from keysift.web.shared.chart import svg_file
from keysift.web.shared.labels import wrapped
from keysift.web.shared.page import safe

WIDTH, TEXT, PLOT_LEFT, PLOT_RIGHT = 960, 400, 430, 720  # pixels: text, then intervals, then verdict
SIZE, LINE, GAP, HEAD = 12, 15, 12, 46  # font size, line height, space between rows, height of the head of a group
UNITS: dict[RuleName, str] = {
    "accuracy_higher": "accuracy",
    "context_gain_higher": "nats",
    "fewer_parameters": "log of the ratio",
    "fewer_tokens": "log of the ratio",
    "loss_lower": "nats",
    "loss_rise_lower": "nats",
    "order_predicted": "rank correlation",
    "sensitivity_lower": "nats",
}


@dataclass(frozen=True)
class Row:
    """A question: its claim and study, effect and interval in its unit, the verdict, and what the figure rests on."""

    text: str
    study: str
    unit: str
    mean: float
    interval: tuple[float, float] | None
    verdict: str
    basis: str


def rows(studies: Sequence[Study], decided: dict[str, list[Verdict]]) -> list[Row]:
    """Every primary claim, and the first claim of every other study, where the records give an effect."""
    chosen = []
    for study in studies:
        with_effect = [verdict for verdict in decided[study.name] if verdict.comparison and verdict.claim.rule in UNITS]
        primary = [verdict for verdict in with_effect if verdict.claim.primary]
        chosen += [_row(study, verdict) for verdict in primary or with_effect[:1]]
    return chosen


def _row(study: Study, verdict: Verdict) -> Row:
    assert verdict.comparison is not None
    seeds = f"{verdict.comparison.n} seeds"
    return Row(
        text=verdict.claim.text,
        study=study.page.title,
        unit=UNITS[verdict.claim.rule],
        mean=verdict.comparison.mean,
        interval=verdict.comparison.bounds(),
        verdict=verdict.text,
        basis=f"{seeds}, {tokens(study.training)} tokens each" if tokens(study.training) else seeds,
    )


def tokens(training: dict[str, Any]) -> str:
    """Training tokens of a run, in millions; empty if the models of a study differ in it."""
    if "steps" not in training or "batch_tokens" not in training:
        return ""
    return f"{training['steps'] * training['batch_tokens'] / 1e6:.2g}M"


def draw(plotted: Sequence[Row]) -> str | None:
    """The plot as an SVG file; None without rows. Effects right of zero support their claim."""
    if not plotted:
        return None
    parts: list[str] = []
    y = 8.0
    for unit in dict.fromkeys(row.unit for row in plotted):
        group = [row for row in plotted if row.unit == unit]
        y += _draw_group(parts, y, unit, group)
    label = "aria-label='effect and 95% interval of each question'"
    head = f"<svg viewBox='0 0 {WIDTH} {y:.0f}' role='img' {label} font-family='sans-serif' font-size='{SIZE}'>"
    return svg_file(head + "".join(parts) + "</svg>")


def _draw_group(parts: list[str], top: float, unit: str, group: Sequence[Row]) -> float:
    """Append one panel and return its height."""
    largest = max(abs(end) for row in group for end in (row.mean, *(row.interval or ())))
    limit = largest * 1.05 or 1.0

    def x(value: float) -> float:
        return PLOT_LEFT + (value + limit) / (2 * limit) * (PLOT_RIGHT - PLOT_LEFT)

    parts.append(f"<text x='8' y='{top + 14:.0f}' font-weight='bold' fill='var(--ink)'>Effect: {safe(unit)}</text>")
    studies = [wrapped(row.study, TEXT, SIZE) for row in group]
    texts = [[*wrapped(row.text, TEXT, SIZE), *study] for row, study in zip(group, studies, strict=True)]
    bases = [wrapped(f"{row.verdict}; {row.basis}", WIDTH - PLOT_RIGHT - 24, SIZE) for row in group]
    heights = [LINE * max(len(text), len(base)) + GAP for text, base in zip(texts, bases, strict=True)]
    bottom = top + HEAD + sum(heights)
    for value in _ticks(limit):
        style = "stroke='var(--soft)'" if value == 0 else "class='grid'"
        parts.append(
            f"<line x1='{x(value):.1f}' x2='{x(value):.1f}' y1='{top + 36:.0f}' y2='{bottom:.0f}' {style}/>"
            f"<text class='tick' x='{x(value):.1f}' y='{top + 30:.0f}' text-anchor='middle'>{safe(tick(value))}</text>"
        )
    y = top + HEAD
    for row, text, study, base, height in zip(group, texts, studies, bases, heights, strict=True):
        middle = y + (height - GAP) / 2
        parts.append(_lines(text, 8, y, len(study)) + _lines(base, PLOT_RIGHT + 16, y))
        if row.interval is not None:
            ends = f"x1='{x(row.interval[0]):.1f}' x2='{x(row.interval[1]):.1f}' y1='{middle:.1f}' y2='{middle:.1f}'"
            parts.append(f"<line {ends} stroke='var(--s0)' stroke-width='2'/>")
        parts.append(
            f"<circle cx='{x(row.mean):.1f}' cy='{middle:.1f}' r='4' fill='var(--s0)'>"
            f"<title>{row.mean:+.3g} {safe(unit)}</title></circle>"
        )
        y += height
    return bottom - top + GAP


def _lines(lines: Sequence[str], x: float, top: float, soft: int = 0) -> str:
    """Lines of text; the last `soft` of them are grey."""
    spans = ""
    for index, line in enumerate(lines):
        style = " class='tick'" if index >= len(lines) - soft else ""
        spans += f"<tspan x='{x}' dy='{LINE if index else 0}'{style}>{safe(line)}</tspan>"
    return f"<text x='{x}' y='{top + SIZE:.0f}' fill='var(--ink)'>{spans}</text>"


def _ticks(limit: float) -> list[float]:
    """Zero and up to two round values on each side."""
    step = 10 ** math.floor(math.log10(limit))
    step = max(size * step for size in (0.2, 0.5, 1, 2, 5) if size * step <= limit / 1.5)
    count = int(limit / step)
    return [step * number for number in range(-count, count + 1)]
