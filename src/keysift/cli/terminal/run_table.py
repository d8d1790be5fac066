"""Tables of runs that fit the terminal: long names wrap, and columns that do not fit are listed below."""

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from keysift.cli.terminal import output
from keysift.core.config import config
from keysift.core.terminal import escape_line, styled
from keysift.records.runs import ComparedRun, Comparison, RunGroup
from keysift.runs.summary import sparkline

_MIN_NAME = 16  # minimum width of a wrapped name


@config
class Column:
    title: str
    cells: tuple[str, ...]
    left: bool = False

    @property
    def width(self) -> int:
        return max(map(len, (self.title, *self.cells))) + 1


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print runs best first, after the means over seeds if any runs differ in their seed only."""
    shared = _shared(comparison.runs)
    if shared:
        console.print(styled(shared), soft_wrap=True)
    if comparison.groups:
        console.print(styled("\nMean over seeds, best first"), soft_wrap=True)
        _print(_group_columns(comparison), [run.best for run in comparison.groups], console)
        console.print(styled("\nEvery run, best first"), soft_wrap=True)
    _print(_run_columns(comparison), [run.best for run in comparison.runs], console)


def _run_columns(comparison: Comparison) -> list[Column]:
    """The most important columns first, because the last ones are dropped on a narrow terminal."""
    runs = comparison.runs
    model, *rest = _differing(comparison, runs)
    return [
        _column("run", runs, lambda run: run.name, left=True),
        _column("validation", runs, lambda run: _decimals(run.validation) + ("*" if run.best else "")),
        _column("bits/byte", runs, lambda run: _decimals(run.bits_per_byte)),
        *_accuracy(runs),
        *model,
        *_if_differing("seed", runs, lambda run: run.seed),
        *_if_differing("state", runs, lambda run: run.state, left=True),
        *(column for columns in rest for column in columns),
        *_if_differing("step", runs, _step),
        _column("loss", runs, lambda run: _decimals(run.loss)),
        _column("tokens/s", runs, lambda run: _count(run.tokens_per_second)),
        _column("loss curve", runs, lambda run: sparkline(run.losses, 16), left=True),
    ]


def _group_columns(comparison: Comparison) -> list[Column]:
    groups = comparison.groups
    # If the runs differ in their seed only, there is one group and no column that differs.
    differing = [column for columns in _differing(comparison, groups) for column in columns]
    first, *rest = differing or [_column("model", groups, lambda run: run.model, left=True)]
    return [
        first,
        _column("validation", groups, lambda run: f"{run.val_losses.mean:.4f}" + ("*" if run.best else "")),
        _column("std", groups, lambda run: _decimals(run.val_losses.std)),
        *_accuracy(groups),
        _column("seeds", groups, lambda run: str(len(run.val_losses))),
        *rest,
    ]


def _accuracy(rows: Sequence[ComparedRun] | Sequence[RunGroup]) -> list[Column]:
    """A column if any run has an accuracy."""
    if all(run.accuracy is None for run in rows):
        return []
    return [_column("accuracy", rows, lambda run: "" if run.accuracy is None else f"{run.accuracy:.1%}")]


def _differing(comparison: Comparison, rows: Sequence[ComparedRun] | Sequence[RunGroup]) -> list[list[Column]]:
    """Columns of the model, the settings and the size, each if it differs."""
    settings = [_column(name, rows, lambda run, name=name: run.differs[name]) for name in comparison.fields]  # type: ignore[misc]
    return [
        _if_differing("model", rows, lambda run: run.model, left=True),
        settings,
        _if_differing("parameters", rows, lambda run: _count(run.parameters)),
    ]


def _if_differing(title: str, rows: Sequence[Any], cell: Callable[[Any], str], *, left: bool = False) -> list[Column]:
    return [_column(title, rows, cell, left=left)] if _differ(rows, cell) else []


def _column(title: str, rows: Sequence[Any], cell: Callable[[Any], str], *, left: bool = False) -> Column:
    return Column(title=title, cells=tuple(escape_line(cell(run)) for run in rows), left=left)


def _print(columns: list[Column], best: list[bool], console: Console) -> None:
    first, *rest = columns
    width = console.width - min(first.width, _MIN_NAME)
    shown_columns, dropped = [first], []
    for column in rest:
        if column.width <= width:
            shown_columns.append(column)
            width -= column.width
        else:
            dropped.append(column.title)
    table: Table = output.table()
    for column in shown_columns:
        fold = column is first
        table.add_column(
            column.title,
            justify="left" if column.left else "right",
            overflow="fold",
            no_wrap=not fold,
            width=min(column.width - 1, width + min(column.width, _MIN_NAME) - 1) if fold else None,
        )
    for at, marked in enumerate(best):
        table.add_row(*(styled(column.cells[at]) for column in shown_columns), style="bold" if marked else None)
    console.print(table)
    if dropped:
        console.print(styled(f"not shown: {', '.join(dropped)}; widen the terminal, or use keysift runs --json"))


def _shared(runs: Sequence[ComparedRun]) -> str:
    """A line with what all runs share."""
    if len(runs) < 2:
        return ""
    run = runs[0]
    parts = [f"{len(runs)} runs"]
    parts += [] if _differ(runs, lambda run: run.model) else [escape_line(run.model)]
    parts += [] if _differ(runs, lambda run: run.parameters) else [f"{run.parameters:,} parameters"]
    parts += [] if _differ(runs, lambda run: run.state) else [run.state]
    parts += [] if _differ(runs, _step) else [f"step {_step(run)}"]
    return ", ".join(parts)


def _differ(rows: Sequence[Any], cell: Callable[[Any], Any]) -> bool:
    return len(rows) == 1 or len({cell(run) for run in rows}) > 1


def _step(run: ComparedRun) -> str:
    return f"{run.step}/{run.steps}" if run.steps else str(run.step)


def _decimals(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"
