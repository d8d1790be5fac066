"""The report of an inspection as one HTML file that opens from disk: records in, nothing fetched, no model loaded."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from keysift.core.shown import shown_text
from keysift.lens.kinds import MEANING
from keysift.lens.record import Record
from keysift.lens.terms import term
from keysift.web.page import source

STYLES = ("colours.css", "base.css", "inspect/inspect.css")
SCRIPTS = (
    "play/number.js",
    "play/elements.js",
    *(f"inspect/{name}.js" for name in ("data", "overview", "head", "tests", "compare", "main")),
)


def inspect_page(records: Sequence[Record], pairs: Sequence[Mapping[str, Any] | None] | None = None) -> str:
    """One record, or several side by side; `pairs` are the stored queries of each (lens/pairs.py), if any."""
    heads = [head.values for record in records for head in record.heads]
    heads += [head["values"] for record in records for swap in record.swaps for head in swap["heads"]]
    names = {name for values in heads for name in values}
    data = {
        "records": [_harmless(record.to_json()) for record in records],
        "pairs": [_harmless_tokens(found) for found in (pairs or [None] * len(records))],
        "terms": {name: vars(term(name)) for name in sorted(names)},
        "kinds": MEANING,
    }
    parts = {
        "style": "".join(map(source, STYLES)),
        "data": _as_json(data),
        "script": '"use strict";\n' + "".join(map(source, SCRIPTS)),
    }
    page = source("inspect/page.html")
    for name, text in parts.items():
        before, after = page.split(f"/*{name}*/")
        page = before + text + after
    return page


def _harmless(value: Any) -> Any:
    """Texts with what would rearrange a line spelled out; letters of every script stay."""
    if isinstance(value, str):
        return shown_text(value)
    if isinstance(value, Mapping):
        return {shown_text(key): _harmless(item) for key, item in value.items()}
    return [_harmless(item) for item in value] if isinstance(value, list) else value


def _harmless_tokens(pairs: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The packed numbers are left as they are."""
    return None if pairs is None else {**pairs, "tokens": _harmless(pairs["tokens"])}


def _as_json(value: Any) -> str:
    """JSON inside a page: no `<`, so that no text in it can end the element."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
