"""The context experiment as one HTML file: small charts for each mechanism, opened from disk.

On a desktop a table, one row a mechanism and one column a context; on a phone a card for each mechanism, its contexts
two by two, so that the bars that moved are seen beside those that stood still.
"""

from collections.abc import Sequence
from html import escape

from keysift.evaluate.record import Context, ContextExperiment, Row
from keysift.web.number import number
from keysift.web.page import page

_CEILING = 1.2  # weights above are drawn cut off, with their number written out
_BAR, _PITCH, _TALLEST, _LABEL, _AXIS = 26, 46, 60, 15, 22

_STYLE = """
.contexts { width: 100%; } .contexts th, .contexts td { padding: .5rem; }
.contexts small { display: block; font-weight: 400; color: var(--soft); } .contexts code { font-weight: 400; }
.contexts tbody th { min-width: 12rem; font-weight: 600; } .contexts small.alone { color: var(--bar); }
.contexts td::before { display: none; }
@media (max-width: 760px) {
  .contexts, .contexts tbody { display: block; background: none; } .contexts thead { display: none; }
  .contexts tr { display: grid; grid-template-columns: 1fr 1fr; margin: 0 0 1rem; border: 1px solid var(--line);
    border-radius: .5rem; background: var(--card); overflow: hidden; }
  .contexts th, .contexts td { border: 0; } .contexts tbody th { grid-column: 1 / -1; min-width: 0; padding-bottom: 0; }
  .contexts td { min-width: 0; }
  .contexts td::before { display: block; content: attr(data-context); color: var(--soft); font-size: .8rem; }
}
"""


def context_page(experiment: ContextExperiment, more: str = "") -> str:
    """`more` is what follows: HTML of other parts of the demo."""
    heads = "".join(
        f"<th scope='col' role='columnheader'>{escape(c.title)}<small>scores {_listed(c.scores)}</small>"
        f"<small>cosines {_listed(c.cosines)}</small></th>"
        for c in experiment.contexts
    )
    rows = "\n".join(_row(row, experiment.contexts) for row in experiment.rows)
    alone = sum(row.absolute for row in experiment.rows)
    body = f"""<h1>The same key in different company</h1>
<p>Each chart shows the weights a mechanism gives to the keys present; below each bar stands the key's score
or cosine. When a
third key comes, the first two keep their scores. A bar drawn <span class="mark">red and marked ▲▼</span> moved all the
same: that weight compared keys, it did not judge one. {alone} of {len(experiment.rows)} mechanisms judge each key
alone. In the last context nothing is relevant: watch who can say so.</p>
<table class="contexts" role="table">
<thead role="rowgroup"><tr role="row"><th scope="col" role="columnheader">mechanism</th>{heads}</tr></thead>
<tbody role="rowgroup">
{rows}
</tbody>
</table>
<p class="hint">Mechanisms that compare two maps get a second map of equal scores. Screening reads the cosines,
all others the scores, which are logits. Constants that depend on the context length are taken at 4 keys.</p>
{more}"""
    return page("keysift: the same key in different company", body, _STYLE)


def _listed(row: tuple[float, ...]) -> str:
    return ", ".join(f"{number:g}" for number in row)


def _row(row: Row, contexts: Sequence[Context]) -> str:
    css, judged = ("alone", "judges each key alone") if row.absolute else ("hint", "compares keys")
    head = f"{escape(row.title)}<code class='formula'>{escape(row.formula)}</code><small class='{css}'>{judged}</small>"
    below = max(_size(-weight) for weights in row.weights for weight in weights)
    before = (row.weights[0], *row.weights)
    cells = "".join(
        f"<td role='cell' data-context='{escape(context.title, quote=True)}'>"
        f"{_chart(f'{row.title}, {context.title}', read, old, weights, moved, below)}</td>"
        for context, read, old, weights, moved in zip(contexts, row.read, before, row.weights, row.moved, strict=False)
    )
    return f"<tr role='row'><th scope='row' role='rowheader'>{head}</th>{cells}</tr>"


def _size(weight: float) -> float:
    return min(max(weight, 0.0), _CEILING) / _CEILING * _TALLEST


def _chart(
    title: str,
    read: tuple[float, ...],
    before: tuple[float, ...],
    weights: tuple[float, ...],
    moved: tuple[bool, ...],
    below: float,
) -> str:
    """Bars over a base line, `below` leaving room for the most negative weight of the row."""
    base = _LABEL + _TALLEST
    foot = base + below + (_LABEL if below else 2)
    width, height = _AXIS + len(weights) * _PITCH, foot + _LABEL
    parts = []
    for level in (0, 1):
        y = base - _size(level)
        parts.append(f"<path d='M{_AXIS - 4} {y:.1f} H{width}' class='grid'/>")
        parts.append(f"<text x='{_AXIS - 7}' y='{y + 4:.1f}' text-anchor='end' class='tick'>{level}</text>")
    for j, (weight, mark) in enumerate(zip(weights, moved, strict=True)):
        x = _AXIS + j * _PITCH + (_PITCH - _BAR) / 2
        tall = _size(abs(weight))
        top = base - tall if weight > 0 else base
        colour = "var(--moved)" if mark else "var(--bar)"
        parts.append(f"<rect x='{x:g}' y='{top:.1f}' width='{_BAR}' height='{tall:.1f}' fill='{colour}'/>")
        if abs(weight) > _CEILING:
            cut = top + 8 if weight > 0 else top + tall - 4
            parts.append(f"<path d='M{x - 2:g} {cut:.1f} l{_BAR + 4} -4' stroke='var(--card)' stroke-width='3'/>")
        arrow = ("▲" if weight > before[j] else "▼") if mark else ""
        label = top - 3 if weight >= 0 else top + tall + 11
        middle = f"x='{x + _BAR / 2:g}' text-anchor='middle'"
        parts.append(f"<text {middle} y='{label:.1f}'>{arrow}{number(weight)}</text>")
        parts.append(f"<text {middle} y='{height - 4:.1f}' class='tick'>{read[j]:g}</text>")
    said = ", ".join(number(weight) + (" (moved)" if mark else "") for weight, mark in zip(weights, moved, strict=True))
    name = escape(f"{title}: {said}", quote=True)
    return (
        f"<svg width='{width}' height='{height:.0f}' viewBox='0 0 {width} {height:.0f}' role='img' aria-label='{name}' "
        f"font-family='system-ui, sans-serif' font-size='11' fill='var(--ink)'>{''.join(parts)}</svg>"
    )
