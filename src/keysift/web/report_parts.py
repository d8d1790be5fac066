"""The pieces of a report: sections, figures with their command and their numbers, and lines for what is missing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from keysift.web.page import safe, table


@dataclass(frozen=True)
class Section:
    """`anchor` is its address in the page."""

    anchor: str
    title: str
    body: str


def figure(
    drawing: str, caption: str, commands: Iterable[str], heads: Sequence[str], rows: Iterable[Sequence[str]]
) -> str:
    """A drawing, what it shows, how it was made, and its numbers."""
    return (
        f"<figure>\n{drawing}\n<figcaption>{safe(caption)}</figcaption>\n{made(commands)}"
        f"<details><summary>Numbers</summary>\n{table(heads, rows)}</details>\n</figure>\n"
    )


def side_by_side(figures: Iterable[str]) -> str:
    """As many in a row as there is room for."""
    drawn = "".join(figures)
    return f"<div class='figures'>\n{drawn}</div>\n" if drawn else ""


def made(commands: Iterable[str]) -> str:
    lines = "\n".join(dict.fromkeys(safe(command) for command in commands))
    return f"<pre class='made' tabindex='0'>{lines}</pre>\n" if lines else ""


def missing(what: str, *commands: str) -> str:
    """One line for a section without data."""
    codes = " or ".join(f"<code>{safe(command)}</code>" for command in commands)
    return f"<p class='hint'>{safe(what)} {codes}</p>\n"


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def decimal(value: float | None, digits: int = 4) -> str:
    return "" if value is None else f"{value:.{digits}f}"
