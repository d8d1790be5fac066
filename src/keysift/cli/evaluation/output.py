"""Show and write the result of `keysift eval`: a table, JSON, CSV, figures."""

import csv
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keysift.cli.evaluation.flags import Output
from keysift.cli.terminal import output
from keysift.core.disk import write_atomic
from keysift.records.evaluation import write_record
from keysift.web.figures import evaluation as figures

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class EvalResult:
    """A record with its rows for CSV, the table for the terminal (by default all rows) and its figure."""

    name: str
    record: Any
    rows: Rows
    title: str
    table: Rows | None = None
    draw: Callable[[Any], None] | None = None


def show(result: EvalResult, how: Output, default_folder: Path | None) -> None:
    """Print the result. With --out write record, rows and figure there; otherwise the record to `default_folder`."""
    folder = how.out or default_folder
    if folder is not None:
        written = write(result, folder, figure=how.out is not None)
        output.print_note(f"written: {', '.join(map(str, written))}")
    if how.json:
        output.print_json(result.record)
    elif how.csv:
        output.print_plain(as_csv(result.rows).rstrip("\n"))
    else:
        _table(result.title, result.rows if result.table is None else result.table)


def write(result: EvalResult, folder: Path, *, figure: bool) -> list[Path]:
    """Write the record, and with `figure` its rows and its figure. Returns the files."""
    record = write_record(result.record, folder, result.name)
    if not figure:
        return [record]
    stem = folder / result.name
    write_atomic(stem.with_suffix(".csv"), as_csv(result.rows))
    return [record, stem.with_suffix(".csv"), *([] if result.draw is None else figures.write(result.draw, stem))]


def as_csv(rows: Rows) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _table(title: str, rows: Rows) -> None:
    output.print_plain(title)
    table = output.table()
    for name in rows[0] if rows else ():
        text = any(_is_text(row[name]) for row in rows)
        table.add_column(name, justify="left" if text else "right", no_wrap=not text)
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    output.console().print(table)


def _is_text(value: Any) -> bool:
    """Text may be wrapped; a number with its unit may not."""
    return isinstance(value, str) and not value[:1].isdigit()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) and math.isfinite(value) else str(value)
