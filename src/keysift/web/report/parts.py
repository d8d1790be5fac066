"""Building blocks of a report: sections, figures with their commands and numbers, and hints for missing data."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from keysift.web.shared.page import safe, table

MOST_COMMANDS = 2  # commands that are shown without a click


@dataclass(frozen=True)
class Section:
    """A section of the page; `anchor` is its id."""

    anchor: str
    title: str
    body: str


def figure(
    drawing: str, caption: str, commands: Iterable[str], columns: Sequence[str], rows: Iterable[Sequence[str]]
) -> str:
    """Return a drawing with its caption, the commands that produced it and a table of its numbers."""
    return (
        f"<figure>\n<div class='drawing'>{drawing}</div>\n<div class='about'>"
        f"<figcaption>{safe(caption)}</figcaption>\n{command_block(commands)}"
        f"<details><summary>Numbers</summary>\n{table(columns, rows)}</details>\n</div>\n</figure>\n"
    )


def side_by_side(figures: Iterable[str]) -> str:
    """Place as many figures in a row as fit."""
    drawings = "".join(figures)
    return f"<div class='figures'>\n{drawings}</div>\n" if drawings else ""


def command_block(commands: Iterable[str]) -> str:
    """Return the distinct commands, one per line; more than two are folded."""
    lines = list(dict.fromkeys(safe(command) for command in commands))
    if not lines:
        return ""
    block = "<pre class='commands' tabindex='0'>" + "\n".join(lines) + "</pre>\n"
    if len(lines) <= MOST_COMMANDS:
        return block
    return f"<details><summary>{len(lines)} commands</summary>\n{block}</details>\n"


def columns_with_values(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Drop columns that are empty in every row."""
    kept = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    return [columns[at] for at in kept], [[row[at] for at in kept] for row in rows]


def missing_hint(reason: str, *commands: str) -> str:
    """Return one line for a section without data: the reason and the commands that produce the data."""
    codes = " or ".join(f"<code>{safe(command)}</code>" for command in commands)
    return f"<p class='hint'>{safe(reason)} {codes}</p>\n"


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def decimal(value: float | None, digits: int = 4) -> str:
    return "" if value is None else f"{value:.{digits}f}"
