"""How a measurement is shown and kept: a table, JSON, CSV, figures."""

import csv
import io
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keysift.cli import output
from keysift.cli.eval import Output
from keysift.core.config import to_dict
from keysift.core.disk import write_whole
from keysift.web import figures

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Measured:
    """A record, its rows for CSV, what a terminal shows of them (all, if `table` is None), and its figure."""

    name: str
    record: Any
    rows: Rows
    about: str
    table: Rows | None = None
    draw: Callable[[Any], None] | None = None


def show(found: Measured, how: Output, keep: Path | None) -> None:
    """With --out everything goes there; otherwise the record alone is kept, in `keep`."""
    folder = how.out or keep
    if folder is not None:
        written = write(found, folder, figure=how.out is not None)
        output.print_note(f"written: {', '.join(map(str, written))}")
    if how.json:
        output.print_json(found.record)
    elif how.csv:
        output.print_plain(as_csv(found.rows).rstrip("\n"))
    else:
        _table(found.about, found.rows if found.table is None else found.table)


def write(found: Measured, folder: Path, *, figure: bool) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / found.name
    record = stem.with_suffix(".json")
    write_whole(record, json.dumps(to_dict(found.record), indent=None if len(found.rows) > 10_000 else 1) + "\n")
    if not figure:
        return [record]
    write_whole(stem.with_suffix(".csv"), as_csv(found.rows))
    return [record, stem.with_suffix(".csv"), *([] if found.draw is None else figures.write(found.draw, stem))]


def as_csv(rows: Rows) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _table(about: str, rows: Rows) -> None:
    output.print_plain(about)
    shown = output.table()
    for name in rows[0] if rows else ():
        text = any(_is_text(row[name]) for row in rows)
        shown.add_column(name, justify="left" if text else "right", no_wrap=not text)
    for row in rows:
        shown.add_row(*map(_word, row.values()))
    output.console().print(shown)


def _is_text(value: Any) -> bool:
    """Words, which may be wrapped, and not a number with its unit."""
    return isinstance(value, str) and not value[:1].isdigit()


def _word(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) and math.isfinite(value) else str(value)
