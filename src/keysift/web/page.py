"""What every page shares: the frame around a body, tables, and the style sheets colours.css and base.css."""

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from keysift.core.shown import shown_text

SERIES = 8  # colours --s0 to --s7


def source(name: str) -> str:
    """A file beside this one that goes into pages."""
    return resources.files("keysift.web").joinpath(name).read_text(encoding="utf-8")


def safe(text: str) -> str:
    """Text as HTML: nothing in it is markup, and what would rearrange a line is spelled out."""
    return escape(shown_text(text))


def page(title: str, body: str, style: str = "") -> str:
    """A whole HTML file that needs no other file. `style` is what only this page needs."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{safe(title)}</title>
<style>{source("colours.css")}{source("base.css")}{style}</style>
</head>
<body class="paper">
{body}</body>
</html>
"""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, best: int | None = None) -> str:
    """Cells that are numbers stand to the right; the row `best` is marked. Scrolls in its own box on a phone."""
    head = "".join(f"<th scope='col'>{safe(text)}</th>" for text in heads)
    lines = []
    for place, cells in enumerate(rows):
        mark = " class='best'" if place == best else ""
        lines.append(f"<tr{mark}>{''.join(map(_cell, cells))}</tr>")
    # A box that scrolls takes the focus, so that the arrow keys can move it.
    found = f"<table><thead><tr>{head}</tr></thead>\n<tbody>{''.join(lines)}</tbody></table>"
    return f"<div class='scroll' tabindex='0'>{found}</div>\n"


def _cell(text: str) -> str:
    figure = text[:1].isdigit() or text[:2].lstrip("-")[:1].isdigit()
    return f"<td{' class=figure' if figure else ''}>{safe(text)}</td>"
