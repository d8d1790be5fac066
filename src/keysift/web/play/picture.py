"""The README's picture as SVG: the same key with different competitors, under softmax and screening."""

import re
from collections.abc import Sequence
from html import escape
from typing import Literal

from keysift.core.number import number, tick
from keysift.records.playground import Preset, PresetCase
from keysift.web.shared.page import source

Scheme = Literal["light", "dark"]

_WIDTH, _LEFT, _TOP, _ROW, _BAR_HEIGHT = 780, 190, 66, 154, 100
_BAR, _BAR_STEP, _PANEL = 40, 62, 300
_UNCHANGED = 1e-9  # weights closer than this count as equal
_TITLES = {"softmax": ("Softmax", "compares keys"), "screening": ("Screening", "weighs keys separately")}


def picture(presets: Sequence[Preset], cases: Sequence[PresetCase], scheme: Scheme) -> str:
    """Draw one row per mechanism and one column per preset. The first key of each preset is the compared one."""
    colour = colours(scheme)
    mechanisms = list(dict.fromkeys(case.mechanism for case in cases))
    height = _TOP + _ROW * len(mechanisms)
    parts = [f'<rect width="{_WIDTH}" height="{height}" fill="{colour["page"]}"/>']
    heading = f"The same key with different competitors (cosine {tick(presets[0].cosines[0])} in both)"
    parts.append(_text(20, 28, heading, colour["ink"], 18, 600))
    for column, preset in enumerate(presets):
        parts.append(_text(_LEFT + _PANEL * column, 60, preset.title, colour["soft"], 14, 600))
    for row, mechanism in enumerate(mechanisms):
        base = _TOP + _ROW * row + 24 + _BAR_HEIGHT
        title, subtitle = _TITLES[mechanism]
        parts += [
            _text(20, base - 60, title, colour["ink"], 18, 600),
            _text(20, base - 40, subtitle, colour["soft"], 13),
        ]
        weights = [_weights(cases, mechanism, preset) for preset in presets]
        for column, preset in enumerate(presets):
            reference = weights[0][0] if column else None
            parts += _panel(preset, weights[column], reference, _LEFT + _PANEL * column, base, colour)
    label = _description(presets, mechanisms, cases)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'font-family="system-ui, sans-serif" role="img" aria-label="{escape(label)}">\n'
        + "\n".join(parts)
        + "\n</svg>"
    )


def _weights(cases: Sequence[PresetCase], mechanism: str, preset: Preset) -> tuple[float, ...]:
    return next(case.weights for case in cases if (case.mechanism, case.preset) == (mechanism, preset.name))


def _panel(
    preset: Preset, weights: Sequence[float], reference: float | None, left: float, base: float, colour: dict[str, str]
) -> list[str]:
    """Draw one preset. `reference` is the weight of the first key in the first preset, None for that preset."""
    parts = [f'<path d="M{left - 6} {base}h{_BAR_STEP * 4}" stroke="{colour["soft"]}"/>']
    for j, (weight, cosine) in enumerate(zip(weights, preset.cosines, strict=True)):
        x, bar_height = left + j * _BAR_STEP, weight * _BAR_HEIGHT
        changed = j == 0 and reference is not None and abs(weight - reference) > _UNCHANGED
        fill = colour["moved"] if changed else colour["bar"] if j == 0 else colour["soft"]
        parts.append(
            f'<rect x="{x}" y="{base - bar_height:.1f}" width="{_BAR}" height="{bar_height:.1f}" fill="{fill}"/>'
        )
        middle, top = x + _BAR / 2, base - bar_height - 6
        if j == 0 and reference is not None:
            top = base - max(bar_height, reference * _BAR_HEIGHT) - 6
            parts += _comparison(x, base, top, weight, reference, colour)
        parts.append(_text(middle, top, number(weight), colour["ink"], 14, 600 if j == 0 else 400, "middle"))
        name = "the key" if j == 0 else f"c = {tick(cosine)}"
        parts.append(_text(middle, base + 17, name, colour["ink" if j == 0 else "soft"], 12, 400, "middle"))
    return parts


def _comparison(
    x: float, base: float, top: float, weight: float, reference: float, colour: dict[str, str]
) -> list[str]:
    """Label the bar with the change from the reference weight. If it changed, outline the reference bar."""
    if abs(weight - reference) <= _UNCHANGED:
        return [_text(x - 2, top - 17, "same score, same weight", colour["bar"], 13, 600)]
    height = reference * _BAR_HEIGHT
    dashed = f'fill="none" stroke="{colour["ink"]}" stroke-dasharray="4 3"'
    change = f"{'▼' if weight < reference else '▲'} {number(weight - reference).replace('-', '−')}, same score"
    return [
        f'<rect x="{x - 3}" y="{base - height:.1f}" width="{_BAR + 6}" height="{height:.1f}" {dashed}/>',
        _text(x - 2, top - 17, change, colour["moved"], 13, 600),
    ]


def _text(x: float, y: float, text: str, fill: str, size: int, weight: int = 400, anchor: str = "start") -> str:
    attributes = f'x="{x:g}" y="{y:.1f}" fill="{fill}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}"'
    return f"<text {attributes}>{escape(text)}</text>"


def _description(presets: Sequence[Preset], mechanisms: Sequence[str], cases: Sequence[PresetCase]) -> str:
    """Return the alternative text of the picture."""
    sentences = []
    for mechanism in mechanisms:
        weights = (f"{number(_weights(cases, mechanism, preset)[0])} {preset.title}" for preset in presets)
        sentences.append(f"{_TITLES[mechanism][0]} gives the key {' and '.join(weights)}.")
    return " ".join(["The same key with different competitors.", *sentences])


def colours(scheme: Scheme) -> dict[str, str]:
    """Read the colours of the pages from their style sheet."""
    light, dark = source("shared/colours.css").split("@media")
    names = dict(re.findall(r"--([a-z0-9-]+):\s*(#[0-9a-f]+)", light))
    return names if scheme == "light" else names | dict(re.findall(r"--([a-z0-9-]+):\s*(#[0-9a-f]+)", dark))
