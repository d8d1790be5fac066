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
from keysift.core.config import to_dict
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


def store(result: EvalResult, out: Path | None, default_folder: Path | None) -> None:
    """Write record, rows and figure to `out`; without it, the record to `default_folder`, if there is one."""
    folder = out or default_folder
    if folder is not None:
        written = write(result, folder, figure=out is not None)
        output.print_note(f"written: {', '.join(map(str, written))}")


def show(results: list[EvalResult], how: Output) -> None:
    """Print a result, or those of several models together."""
    if how.json:
        output.print_json(results[0].record if len(results) == 1 else [to_dict(result.record) for result in results])
    elif how.csv:
        output.print_plain(as_csv(_join([result.rows for result in results], results)).rstrip("\n"))
    else:
        title = results[0].title if len(results) == 1 else f"{len(results)} models"
        tables = [result.rows if result.table is None else result.table for result in results]
        _table(title, _join(tables, results))


def _join(tables: list[Rows], results: list[EvalResult]) -> Rows:
    """The rows of all results; with several of them, the first column names the model."""
    if len(results) == 1:
        return tables[0]
    names = [result.record.subject.name for result in results]
    return [{"model": name, **row} for name, table in zip(names, tables, strict=True) for row in table]


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
