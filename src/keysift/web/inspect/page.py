"""Page of an inspection: one HTML file made from lens records; it loads no model and fetches nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from keysift.core.terminal import escape_text
from keysift.records.head_kinds import MEANINGS
from keysift.records.lens import Record
from keysift.records.lens_terms import in_order, term
from keysift.web.shared.page import script_page

STYLES = ("inspect/inspect.css",)
SCRIPTS = (
    "shared/number.js",
    "shared/elements.js",
    "inspect/data.js",
    "inspect/overview.js",
    "inspect/head.js",
    "inspect/tests.js",
    "inspect/compare.js",
    "inspect/main.js",
)


def inspect_page(records: Sequence[Record], pairs: Sequence[Mapping[str, Any] | None] | None = None) -> str:
    """Return the page of one record, or of several to compare.

    `pairs` holds the stored queries of each record (keysift.lens.diagnostics.pairs), or None where a record has none.
    """
    values = [head.values for record in records for head in record.heads]
    values += [head["values"] for record in records for swap in record.swaps for head in swap["heads"]]
    names = in_order({name for head_values in values for name in head_values})
    data = {
        "records": [_escaped(record.to_json()) for record in records],
        "pairs": [_escaped_tokens(stored) for stored in (pairs or [None] * len(records))],
        "terms": {name: vars(term(name)) for name in names},
        "kinds": MEANINGS,
    }
    return script_page("inspect/page.html", styles=STYLES, scripts=SCRIPTS, data=data)


def _escaped(value: Any) -> Any:
    """Spell out characters that would reorder a line, in every text of `value`; letters of any script stay."""
    if isinstance(value, str):
        return escape_text(value)
    if isinstance(value, Mapping):
        return {escape_text(key): _escaped(item) for key, item in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, list) else value


def _escaped_tokens(pairs: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Apply `_escaped` to the tokens only: the other entries are packed numbers."""
    return None if pairs is None else {**pairs, "tokens": _escaped(pairs["tokens"])}
