"""Runs beside each other, as tables that fit the terminal: names are folded, not cut; what has no room is named."""

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from keysift.cli import output
from keysift.core.config import config
from keysift.core.shown import shown, styled
from keysift.runs.compare import Compared, Comparison, Group
from keysift.runs.summary import sparkline

_NAME = 16  # columns a folded name keeps at least


@config
class Column:
    title: str
    cells: tuple[str, ...]
    left: bool = False

    @property
    def width(self) -> int:
        return max(map(len, (self.title, *self.cells))) + 1


def print_comparison(found: Comparison, console: Console) -> None:
    shared = _shared(found.runs)
    if shared:
        console.print(styled(shared), soft_wrap=True)
    if found.groups:
        console.print(styled("\nMean over seeds, best first"), soft_wrap=True)
        _print(_of_groups(found), [one.best for one in found.groups], console)
        console.print(styled("\nEvery run, best first"), soft_wrap=True)
    _print(_of_runs(found), [one.best for one in found.runs], console)


def _of_runs(found: Comparison) -> list[Column]:
    """The most telling first: those at the end are left out where there is no room."""
    runs = found.runs
    model, *rest = _differing(found, runs)
    return [
        _column("run", runs, lambda one: one.name, left=True),
        _column("validation", runs, lambda one: _figure(one.validation) + ("*" if one.best else "")),
        *_accuracy(runs),
        *model,
        *_if_differing("seed", runs, lambda one: one.seed),
        *_if_differing("state", runs, lambda one: one.state, left=True),
        *(column for columns in rest for column in columns),
        *_if_differing("step", runs, _step),
        _column("loss", runs, lambda one: _figure(one.loss)),
        _column("tokens/s", runs, lambda one: _count(one.tokens_per_second)),
        _column("bits/byte", runs, lambda one: _figure(one.bits_per_byte)),
        _column("loss curve", runs, lambda one: sparkline(one.losses, 16), left=True),
    ]


def _of_groups(found: Comparison) -> list[Column]:
    groups = found.groups
    # Where only seeds differ there is one group, and nothing else to tell it by.
    told = [column for columns in _differing(found, groups) for column in columns]
    first, *rest = told or [_column("model", groups, lambda one: one.model, left=True)]
    return [
        first,
        _column("validation", groups, lambda one: f"{one.mean:.4f}" + ("*" if one.best else "")),
        _column("spread", groups, lambda one: "" if one.spread is None else f"{one.spread:.4f}"),
        *_accuracy(groups),
        _column("seeds", groups, lambda one: str(one.seeds)),
        *rest,
    ]


def _accuracy(rows: Sequence[Compared] | Sequence[Group]) -> list[Column]:
    """Where any of them answers questions."""
    if all(one.accuracy is None for one in rows):
        return []
    return [_column("accuracy", rows, lambda one: "" if one.accuracy is None else f"{one.accuracy:.1%}")]


def _differing(found: Comparison, rows: Sequence[Compared] | Sequence[Group]) -> list[list[Column]]:
    """The model, the settings and the size, each if they differ."""
    settings = [_column(name, rows, lambda one, name=name: one.differs[name]) for name in found.fields]  # type: ignore[misc]
    return [
        _if_differing("model", rows, lambda one: one.model, left=True),
        settings,
        _if_differing("parameters", rows, lambda one: _count(one.parameters)),
    ]


def _if_differing(title: str, rows: Sequence[Any], cell: Callable[[Any], str], *, left: bool = False) -> list[Column]:
    return [_column(title, rows, cell, left=left)] if _differ(rows, cell) else []


def _column(title: str, rows: Sequence[Any], cell: Callable[[Any], str], *, left: bool = False) -> Column:
    return Column(title=title, cells=tuple(shown(cell(one)) for one in rows), left=left)


def _print(columns: list[Column], best: list[bool], console: Console) -> None:
    first, *rest = columns
    room = console.width - min(first.width, _NAME)
    kept, left_out = [first], []
    for column in rest:
        if column.width <= room:
            kept.append(column)
            room -= column.width
        else:
            left_out.append(column.title)
    table: Table = output.table()
    for column in kept:
        fold = column is first
        table.add_column(
            column.title,
            justify="left" if column.left else "right",
            overflow="fold",
            no_wrap=not fold,
            width=min(column.width - 1, room + min(column.width, _NAME) - 1) if fold else None,
        )
    for at, marked in enumerate(best):
        table.add_row(*(styled(column.cells[at]) for column in kept), style="bold" if marked else None)
    console.print(table)
    if left_out:
        console.print(styled(f"no room for {', '.join(left_out)}; widen the terminal, or keysift runs --json"))


def _shared(runs: Sequence[Compared]) -> str:
    """What is the same in all of them, once."""
    if len(runs) < 2:
        return ""
    one = runs[0]
    parts = [f"{len(runs)} runs"]
    parts += [] if _differ(runs, lambda o: o.model) else [shown(one.model)]
    parts += [] if _differ(runs, lambda o: o.parameters) else [f"{one.parameters:,} parameters"]
    parts += [] if _differ(runs, lambda o: o.state) else [one.state]
    parts += [] if _differ(runs, _step) else [f"step {_step(one)}"]
    return ", ".join(parts)


def _differ(rows: Sequence[Any], cell: Callable[[Any], Any]) -> bool:
    return len(rows) == 1 or len({cell(one) for one in rows}) > 1


def _step(one: Compared) -> str:
    return f"{one.step}/{one.steps}" if one.steps else str(one.step)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"
