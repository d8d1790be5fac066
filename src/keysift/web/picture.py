"""The picture the README opens with: one key in two companies, through softmax and screening, as SVG."""

import re
from collections.abc import Sequence
from html import escape
from typing import Literal

from keysift.evaluate.play_record import Preset, PresetCase
from keysift.web.number import number, tick
from keysift.web.page import source

Scheme = Literal["light", "dark"]

_WIDE, _LEFT, _TOP, _ROW, _HIGH = 780, 190, 66, 154, 100
_BAR, _STEP, _PANEL = 40, 62, 300
_TITLES = {"softmax": ("Softmax", "compares keys"), "screening": ("Screening", "judges each key alone")}


def picture(companies: Sequence[Preset], cases: Sequence[PresetCase], scheme: Scheme) -> str:
    """A row for each mechanism, a column for each company; the first key is the one to watch."""
    ink = colours(scheme)
    mechanisms = list(dict.fromkeys(case.mechanism for case in cases))
    high = _TOP + _ROW * len(mechanisms)
    parts = [f'<rect width="{_WIDE}" height="{high}" fill="{ink["page"]}"/>']
    head = f"One key, the same score (cosine {tick(companies[0].cosines[0])}), in two companies"
    parts.append(_text(20, 28, head, ink["ink"], 18, 600))
    parts += [_text(_LEFT + _PANEL * k, 60, company.title, ink["soft"], 14, 600) for k, company in enumerate(companies)]
    for row, mechanism in enumerate(mechanisms):
        base = _TOP + _ROW * row + 24 + _HIGH
        title, about = _TITLES[mechanism]
        parts += [_text(20, base - 60, title, ink["ink"], 18, 600), _text(20, base - 40, about, ink["soft"], 13)]
        weights = [next(c.weights for c in cases if (c.mechanism, c.preset) == (mechanism, p.name)) for p in companies]
        for column, company in enumerate(companies):
            parts += _panel(
                company, weights[column], weights[0][0] if column else None, _LEFT + _PANEL * column, base, ink
            )
    label = _words(companies, mechanisms, cases)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {high}" width="{_WIDE}" height="{high}" '
        f'font-family="system-ui, sans-serif" role="img" aria-label="{escape(label)}">\n'
        + "\n".join(parts)
        + "\n</svg>"
    )


def _panel(
    company: Preset, weights: Sequence[float], first: float | None, left: float, base: float, ink: dict[str, str]
) -> list[str]:
    """Bars of one company; `first` is what the key weighed in the company before."""
    parts = [f'<path d="M{left - 6} {base}h{_STEP * 4}" stroke="{ink["soft"]}"/>']
    for j, (weight, cosine) in enumerate(zip(weights, company.cosines, strict=True)):
        x, tall = left + j * _STEP, weight * _HIGH
        moved = j == 0 and first is not None and abs(weight - first) > 1e-9
        colour = ink["moved"] if moved else ink["bar"] if j == 0 else ink["soft"]
        parts.append(f'<rect x="{x}" y="{base - tall:.1f}" width="{_BAR}" height="{tall:.1f}" fill="{colour}"/>')
        middle, top = x + _BAR / 2, base - tall - 6
        if j == 0 and first is not None:
            top = base - max(tall, first * _HIGH) - 6
            parts += _verdict(x, base, top, weight, first, ink)
        parts.append(_text(middle, top, number(weight), ink["ink"], 14, 600 if j == 0 else 400, "middle"))
        name = "the key" if j == 0 else f"c = {tick(cosine)}"
        parts.append(_text(middle, base + 17, name, ink["ink"] if j == 0 else ink["soft"], 12, 400, "middle"))
    return parts


def _verdict(x: float, base: float, top: float, weight: float, first: float, ink: dict[str, str]) -> list[str]:
    """Whether the key kept its weight; if not, an outline of where it was."""
    if abs(weight - first) <= 1e-9:
        return [_text(x - 2, top - 17, "same score, same weight", ink["bar"], 13, 600)]
    was = first * _HIGH
    dashed = f'fill="none" stroke="{ink["ink"]}" stroke-dasharray="4 3"'
    change = f"{'▼' if weight < first else '▲'} {number(weight - first).replace('-', '−')}, same score"
    return [
        f'<rect x="{x - 3}" y="{base - was:.1f}" width="{_BAR + 6}" height="{was:.1f}" {dashed}/>',
        _text(x - 2, top - 17, change, ink["moved"], 13, 600),
    ]


def _text(x: float, y: float, text: str, fill: str, size: int, weight: int = 400, anchor: str = "start") -> str:
    place = f'x="{x:g}" y="{y:.1f}" fill="{fill}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}"'
    return f"<text {place}>{escape(text)}</text>"


def _words(companies: Sequence[Preset], mechanisms: Sequence[str], cases: Sequence[PresetCase]) -> str:
    said = [
        f"{_TITLES[name][0]} gives the key "
        + " and ".join(
            f"{number(case.weights[0])} {company.title}"
            for company in companies
            for case in cases
            if (case.mechanism, case.preset) == (name, company.name)
        )
        for name in mechanisms
    ]
    return f"One key with the same score in two companies. {'. '.join(said)}."


def colours(scheme: Scheme) -> dict[str, str]:
    """The colours of the pages, read from their style sheet."""
    light, dark = source("colours.css").split("@media")
    found = dict(re.findall(r"--([a-z0-9-]+):\s*(#[0-9a-f]+)", light))
    return found if scheme == "light" else found | dict(re.findall(r"--([a-z0-9-]+):\s*(#[0-9a-f]+)", dark))
