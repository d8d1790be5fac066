"""Picture of activation patching: rows are layers, columns tokens or heads; the colour is the effect."""

from keysift.core.number import number
from keysift.records.patching import PatchMap
from keysift.web.shared.page import page, safe, safe_token

_WIDTH, _HEIGHT, _LEFT, _BASE = 34, 24, 190, 96
STYLE = """
svg.patches { max-width: none; }
svg.patches text { fill: var(--ink); font-size: 12px; }
"""


def page_of(result: PatchMap, *, inline: bool = False) -> str:
    """The page of a patching result: the map, what it measures, and the strongest effects as sentences."""
    title = f"Activation patching in {result.model}"
    best = "".join(
        f"<li>{safe(row)} at {safe_token(column)}: {100 * effect:.0f}% of the way to the source</li>"
        for row, column, effect in result.strongest()
    )
    head = "" if inline else f"<h1>{safe(title)}</h1>\n"
    body = f"""{head}<p>Values of “{safe(result.source)}” are written into a run of “{safe(result.target)}”,
one at a time. Measured: {safe(result.measure)}; {number(result.source_value)} for the source,
{number(result.target_value)} for the target.
0% leaves the answer of the target (white), 100% gives the answer of the source (blue); red moves it away.</p>
<div class='scroll' tabindex='0' role='region' aria-label='map of the effects'>{_picture(result)}</div>
<h2>Strongest effects</h2>
<ol>{best}</ol>
"""
    return page(title, body, STYLE)


def _picture(result: PatchMap) -> str:
    parts = []
    for y, (row, effects) in enumerate(zip(result.rows, result.effects, strict=True)):
        parts.append(f"<text x='{_LEFT - 8}' y='{y * _HEIGHT + 16}' text-anchor='end'>{safe(row)}</text>")
        for x, effect in enumerate(effects):
            colour = "var(--heat-under)" if effect < 0 else "var(--heat-high)"
            note = f"{safe(row)} at {safe_token(result.columns[x])}: {100 * effect:.1f}%"
            parts.append(
                f"<rect x='{_LEFT + x * _WIDTH}' y='{y * _HEIGHT}' width='{_WIDTH}' height='{_HEIGHT}' fill='{colour}' "
                f"fill-opacity='{min(1.0, abs(effect)):.3f}' stroke='var(--line)'><title>{note}</title></rect>"
            )
    base = len(result.rows) * _HEIGHT
    for x, column in enumerate(result.columns):
        at = f"{_LEFT + (x + 0.6) * _WIDTH:.0f} {base + 10}"
        text = safe_token(column if len(column) < 14 else f"{column[:13]}…")
        parts.append(f"<text transform='translate({at}) rotate(-90)' text-anchor='end'>{text}</text>")
    width, height = _LEFT + len(result.columns) * _WIDTH + 8, base + _BASE
    row, column, effect = result.strongest(1)[0]
    label = f"Effect of each patch; the strongest is {safe(row)} at {safe_token(column)} with {100 * effect:.0f}%"
    return (
        f"<svg class='patches' width='{width}' height='{height}' viewBox='0 0 {width} {height}' role='img' "
        f"aria-label='{label}'>{''.join(parts)}</svg>"
    )
