"""The context experiment as one HTML file: a row of small charts for each mechanism, opened from disk."""

from html import escape

from keysift.evaluate.record import ContextExperiment, Row

_CEILING = 1.2  # weights above are drawn cut off, with their number written out
_BAR, _GAP, _TALLEST, _LABEL = 26, 12, 60, 15

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2433; --soft: #667; --line: #d6d9e0; --page: #fbfbf9; --card: #fff;
  --bar: #3b6fb6; --moved: #c8402f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ee; --soft: #9aa3b2; --line: #353b47; --page: #14171d;
  --card: #1b1f27; --bar: #7aa7e6; --moved: #ff8b78; } }
body { margin: 0 auto; max-width: 70rem; padding: 2rem 1rem 4rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { margin: 0 0 .3rem; font-size: 1.7rem; } p { max-width: 46rem; }
.mark { color: var(--moved); font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; background: var(--card); }
th, td { border: 1px solid var(--line); padding: .5rem .7rem; text-align: left; vertical-align: middle; }
thead th { font-weight: 600; }
thead small, tbody th small { display: block; color: var(--soft); font-weight: 400; }
tbody th { min-width: 13rem; } code { font-size: .85em; }
svg { display: block; } svg text { font: 11px system-ui, sans-serif; fill: var(--ink); }
.yes { color: var(--bar); } .no { color: var(--soft); }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; }
"""


def context_page(experiment: ContextExperiment, more: str = "") -> str:
    """`more` is what follows: HTML of other parts of the demo."""
    heads = "".join(
        f"<th scope='col'>{escape(c.title)}<small>scores {escape(', '.join(f'{s:g}' for s in c.scores))}</small></th>"
        for c in experiment.contexts
    )
    rows = "\n".join(_row(row) for row in experiment.rows)
    alone = sum(row.absolute for row in experiment.rows)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>keysift: the same key in different company</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>The same key in different company</h1>
<p>Each chart shows the weights a mechanism gives to the keys present. When a third key comes, the first two keep their
scores. A bar drawn <span class="mark">red and marked ▲▼</span> moved all the same: that weight compared keys, it did
not judge one. {alone} of {len(experiment.rows)} mechanisms judge each key alone. In the last column nothing is
relevant: watch who can say so.</p>
<div class="scroll"><table>
<thead><tr><th scope="col">mechanism</th>{heads}</tr></thead>
<tbody>
{rows}
</tbody>
</table></div>
<p><small>Mechanisms that compare two maps get a second map of equal scores. Screening reads cosines: a number x stands
for tanh(x/2). Constants that depend on the context length are taken at 4 keys.</small></p>
{more}</body>
</html>
"""


def _row(row: Row) -> str:
    css, judged = ("yes", "judges each key alone") if row.absolute else ("no", "compares keys")
    head = f"{escape(row.title)}<small><code>{escape(row.formula)}</code></small><small class='{css}'>{judged}</small>"
    below = max(_size(-weight) for weights in row.weights for weight in weights)
    cells = "".join(
        f"<td>{_chart(row.title, old, weights, moved, below)}</td>"
        for old, weights, moved in zip((row.weights[0], *row.weights), row.weights, row.moved, strict=False)
    )
    return f"<tr><th scope='row'>{head}</th>{cells}</tr>"


def _size(weight: float) -> float:
    return min(max(weight, 0.0), _CEILING) / _CEILING * _TALLEST


def _chart(
    title: str, before: tuple[float, ...], weights: tuple[float, ...], moved: tuple[bool, ...], below: float
) -> str:
    """Bars over a base line, `below` leaving room for the most negative weight of the row."""
    base = _LABEL + _TALLEST
    width, height = len(weights) * (_BAR + _GAP) + _GAP, base + below + (_LABEL if below else 2)
    bars = [f"<line x1='0' x2='{width}' y1='{base}' y2='{base}' stroke='var(--line)'/>"]
    for j, (weight, mark) in enumerate(zip(weights, moved, strict=True)):
        x = _GAP + j * (_BAR + _GAP)
        tall = _size(abs(weight))
        top = base - tall if weight > 0 else base
        colour = "var(--moved)" if mark else "var(--bar)"
        bars.append(f"<rect x='{x}' y='{top:.1f}' width='{_BAR}' height='{tall:.1f}' fill='{colour}'/>")
        if abs(weight) > _CEILING:
            cut = top + 8 if weight > 0 else top + tall - 4
            bars.append(f"<path d='M{x - 2} {cut:.1f} l{_BAR + 4} -4' stroke='var(--card)' stroke-width='3'/>")
        arrow = ("▲" if weight > before[j] else "▼") if mark else ""
        label = top - 3 if weight >= 0 else top + tall + 11
        bars.append(f"<text x='{x + _BAR / 2}' y='{label:.1f}' text-anchor='middle'>{arrow}{number(weight)}</text>")
    said = ", ".join(number(weight) + (" (moved)" if mark else "") for weight, mark in zip(weights, moved, strict=True))
    name = escape(f"{title}: {said}", quote=True)
    return f"<svg width='{width}' height='{height:.0f}' role='img' aria-label='{name}'>{''.join(bars)}</svg>"


def number(weight: float) -> str:
    """Short, and honest about zero: '0' is exactly zero, '.000' is not."""
    if weight == 0:
        return "0"
    if abs(weight) >= 100:
        return f"{weight:.0f}"
    text = f"{weight:.3f}" if abs(weight) < 10 else f"{weight:.1f}"
    return text.replace("0.", ".", 1) if abs(weight) < 1 and not text.startswith(("1", "-1")) else text
