"""Page of an inspection: one HTML file made from lens records; it loads no model and fetches nothing."""

import base64
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from keysift.core.terminal import escape_text
from keysift.records.head_kinds import ALL_KINDS
from keysift.records.lens import STORY, Record, plain
from keysift.records.lens_comparison import comparison, matches
from keysift.records.lens_terms import in_order, term
from keysift.web.shared.page import script_page

STYLES = ("inspect/inspect.css", "inspect/map.css")
SCRIPTS = (
    "shared/number.js",
    "shared/elements.js",
    "inspect/decode.js",
    "inspect/state.js",
    "inspect/colours.js",
    "inspect/story.js",
    "inspect/thumbnails.js",
    "inspect/map.js",
    "inspect/query.js",
    "inspect/groups.js",
    "inspect/absolute.js",
    "inspect/topics.js",
    "inspect/compare.js",
    "inspect/export.js",
    "inspect/main.js",
)


def inspect_page(records: Sequence[Record]) -> str:
    """Return the page of one record, or of several to compare."""
    values = [head.values for record in records for head in record.heads]
    values += [head["values"] for record in records for swap in record.swaps for head in swap["heads"]]
    names = in_order({name for head_values in values for name in head_values})
    content = {
        "records": [_shown(record) for record in records],
        "story": STORY,
        "terms": {name: {field: getattr(term(name), field) for field in _TERM_FIELDS} for name in names},
        "kinds": [
            {
                "name": kind.name,
                "meaning": kind.meaning,
                "score": kind.score,
                "limit": kind.limit if math.isfinite(kind.limit) else None,
            }
            for kind in ALL_KINDS
        ],
        "film": _is_film(records),
        # Heads of one run are compared by their place.
        "matches": plain(matches(records)) if len(records) > 1 and not _is_film(records) else [],
        "rows": plain(comparison(records)) if len(records) > 1 else [],
    }
    packed = zlib.compress(json.dumps(content, separators=(",", ":"), allow_nan=False).encode(), 9)
    data = {
        "content": base64.b64encode(packed).decode(),
        "arrays": [[dict(maps.arrays) for maps in record.maps] for record in records],
    }
    return script_page("inspect/page.html", styles=STYLES, scripts=SCRIPTS, data=data)


def _is_film(records: Sequence[Record]) -> bool:
    """Whether the records are checkpoints of one run (keysift.lens.film)."""
    return len(records) > 1 and all("step" in record.made for record in records)


def page_of(record: Record, *, inline: bool = False) -> str:
    """The page of one record; `inline` begins with the maps, for the small frame of a notebook."""
    html = inspect_page([record])
    return html.replace("<html ", "<html data-inline ", 1) if inline else html


_TERM_FIELDS = ("title", "meaning", "origin", "compared")


def _shown(record: Record) -> dict[str, Any]:
    """A record as JSON without packed arrays, and without the curves of diagnostics that no table shows."""
    data = record.to_json()
    for maps in data["maps"]:
        del maps["arrays"]
    for head in data["heads"]:
        head["by_length"] = {name: row for name, row in head["by_length"].items() if _has_curve(name)}
    shown: dict[str, Any] = _escaped(data)
    return shown


def _has_curve(name: str) -> bool:
    return term(name).compared or term(name).column is not None


def _escaped(value: Any) -> Any:
    """Spell out characters that would reorder a line, in every text of `value`; letters of any script stay."""
    if isinstance(value, str):
        return escape_text(value)
    if isinstance(value, Mapping):
        return {escape_text(key): _escaped(item) for key, item in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, list) else value
