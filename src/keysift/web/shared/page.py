"""HTML pages that need no other file: the page shell, script pages filled from a template, and tables."""

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from typing import Any

from keysift.core.terminal import escape_text

SERIES = 8  # number of series colours: --s0 to --s7
BASE_STYLES = ("shared/colours.css", "shared/base.css")


def source(path: str) -> str:
    """Read a style sheet, script or template of this package; `path` is relative to keysift/web."""
    return resources.files("keysift.web").joinpath(path).read_text(encoding="utf-8")


def safe(text: str) -> str:
    """Escape text for HTML and spell out characters that would reorder or break a line."""
    return escape(escape_text(text))


def safe_token(text: str) -> str:
    """Escape a token for HTML. A newline, a tab and a space at either end are visible signs."""
    core = text.strip(" ")
    if not core:
        return "·" * len(text)
    start = text.index(core)
    signs = core.replace("\n", "⏎").replace("\t", "⇥")
    return safe("·" * start + signs + "·" * (len(text) - start - len(core)))


def page(title: str, body: str, style: str = "") -> str:
    """Return a complete HTML file without scripts. `style` holds the rules only this page needs."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{safe(title)}</title>
<style>{_joined(BASE_STYLES)}{style}</style>
</head>
<body class="paper">
{body}</body>
</html>
"""


def script_page(template: str, *, styles: Sequence[str], scripts: Sequence[str], data: Any) -> str:
    """Fill an HTML template: /*style*/, /*data*/ and /*script*/ are replaced by the files and the data as JSON."""
    text = source(template)
    parts = {
        "style": _joined((*BASE_STYLES, *styles)),
        "data": embedded_json(data),
        "script": joined_scripts(scripts),
    }
    for name, content in parts.items():
        before, after = text.split(f"/*{name}*/")
        text = before + content + after
    return text


def joined_scripts(paths: Iterable[str]) -> str:
    """Join scripts into one strict-mode script; all of them share one global scope."""
    return '"use strict";\n' + _joined(paths)


def embedded_json(value: Any) -> str:
    """Write JSON for a script element. `<` is escaped, so no text in it can close the element."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, best: int | None = None) -> str:
    """Return a table that scrolls in its own box. Numbers are right-aligned; row `best` is highlighted."""
    head = "".join(f"<th scope='col'>{safe(text)}</th>" for text in columns)
    lines = []
    for index, cells in enumerate(rows):
        mark = " class='best'" if index == best else ""
        lines.append(f"<tr{mark}>{''.join(map(_cell, cells))}</tr>")
    # The box is focusable, so that the arrow keys can scroll it.
    content = f"<table><thead><tr>{head}</tr></thead>\n<tbody>{''.join(lines)}</tbody></table>"
    return f"<div class='scroll' tabindex='0'>{content}</div>\n"


def _cell(text: str) -> str:
    is_number = text[:1].isdigit() or text[:2].lstrip("-")[:1].isdigit()
    return f"<td{' class=figure' if is_number else ''}>{safe(text)}</td>"


def _joined(paths: Iterable[str]) -> str:
    return "".join(map(source, paths))
