"""Demo page: the same key with different competitors, under every mechanism.

On a desktop a table with one row per mechanism and one column per context; on a phone one card per mechanism.
"""

from collections.abc import Sequence
from html import escape

from keysift.core.number import number
from keysift.records.competitors import Context, ContextExperiment, Row
from keysift.web.shared.page import page, source

_TITLE = "The same key with different competitors"
_CEILING = 1.2  # larger weights are cut off; their number is always written
_BAR, _BAR_STEP, _BAR_HEIGHT, _LABEL, _AXIS = 26, 46, 60, 15, 22


def demo_page(experiment: ContextExperiment, training: str = "") -> str:
    """Return the page. `training` is the HTML of the training section, if the demo trained a model."""
    heads = "".join(
        f"<th scope='col' role='columnheader'>{escape(c.title)}<small>scores {_listed(c.scores)}</small>"
        f"<small>cosines {_listed(c.cosines)}</small></th>"
        for c in experiment.contexts
    )
    rows = "\n".join(_row(row, experiment.contexts) for row in experiment.rows)
    pointwise = sum(row.absolute for row in experiment.rows)
    body = f"""<h1>{_TITLE}</h1>
<p>Each chart shows the weights a mechanism gives to the keys; the number below a bar is the key's score or cosine. When
a third key is added, the scores of the first two stay the same. A <span class="mark">red bar marked ▲▼</span> changed
although its own score did not: its weight depends on the other keys. {pointwise} of {len(experiment.rows)} mechanisms
weigh each key on its own. In the last context no key is relevant: only some mechanisms can give all of them zero.</p>
<table class="contexts" role="table">
<thead role="rowgroup"><tr role="row"><th scope="col" role="columnheader">mechanism</th>{heads}</tr></thead>
<tbody role="rowgroup">
{rows}
</tbody>
</table>
<p class="hint">Mechanisms with two attention maps get a second map of equal scores. Screening reads the cosines, all
others the scores, which are logits. Constants that depend on the context length use a length of 4.</p>
{training}"""
    return page(f"keysift: {_TITLE.lower()}", body, source("demo/demo.css"))


def _listed(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _row(row: Row, contexts: Sequence[Context]) -> str:
    css, kind = ("absolute", "weighs each key on its own") if row.absolute else ("hint", "compares keys")
    head = f"{escape(row.title)}<code class='formula'>{escape(row.formula)}</code><small class='{css}'>{kind}</small>"
    below = max(_bar_height(-weight) for weights in row.weights for weight in weights)
    before = (row.weights[0], *row.weights)
    cells = "".join(
        f"<td role='cell' data-context='{escape(context.title, quote=True)}'>"
        f"{_chart(f'{row.title}, {context.title}', read, old, weights, moved, below)}</td>"
        for context, read, old, weights, moved in zip(contexts, row.read, before, row.weights, row.moved, strict=False)
    )
    return f"<tr role='row'><th scope='row' role='rowheader'>{head}</th>{cells}</tr>"


def _bar_height(weight: float) -> float:
    return min(max(weight, 0.0), _CEILING) / _CEILING * _BAR_HEIGHT


def _chart(
    title: str,
    read: tuple[float, ...],
    before: tuple[float, ...],
    weights: tuple[float, ...],
    moved: tuple[bool, ...],
    below: float,
) -> str:
    """Draw bars over a base line; `below` is the height of the most negative weight of the mechanism."""
    base = _LABEL + _BAR_HEIGHT
    bottom = base + below + (_LABEL if below else 2)
    width, height = _AXIS + len(weights) * _BAR_STEP, bottom + _LABEL
    parts = []
    for level in (0, 1):
        y = base - _bar_height(level)
        parts.append(f"<path d='M{_AXIS - 4} {y:.1f} H{width}' class='grid'/>")
        parts.append(f"<text x='{_AXIS - 7}' y='{y + 4:.1f}' text-anchor='end' class='tick'>{level}</text>")
    for j, (weight, mark) in enumerate(zip(weights, moved, strict=True)):
        x = _AXIS + j * _BAR_STEP + (_BAR_STEP - _BAR) / 2
        tall = _bar_height(abs(weight))
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
    values = ", ".join(
        number(weight) + (" (changed)" if mark else "") for weight, mark in zip(weights, moved, strict=True)
    )
    name = escape(f"{title}: {values}", quote=True)
    return (
        f"<svg width='{width}' height='{height:.0f}' viewBox='0 0 {width} {height:.0f}' role='img' aria-label='{name}' "
        f"font-family='system-ui, sans-serif' font-size='11' fill='var(--ink)'>{''.join(parts)}</svg>"
    )
