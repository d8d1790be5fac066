"""Output of verbs: tables for people, JSON for scripts. All text is escaped by core/terminal.py."""

import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from keysift.core.config import to_dict
from keysift.core.terminal import SafeConsole, escape_text


def console() -> Console:
    """A console with the width of the terminal; in a file or a pipe wide enough for every table."""
    standard = SafeConsole()
    return standard if standard.is_terminal else SafeConsole(width=max(standard.width, 110))


def table(title: str | None = None) -> Table:
    """A table without a frame and with narrow gaps, so that fifteen promises fit on a small terminal."""
    return Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))


def print_json(value: Any) -> None:
    """Print a value or a record as JSON."""
    # JSON does not escape DEL, and the console's escape of it would not be valid JSON.
    print_plain(json.dumps(to_dict(value), indent=2).replace("\x7f", "\\u007f"))


def print_plain(text: str, end: str = "\n") -> None:
    """Print text without colours and wrapping, for scripts and documents."""
    SafeConsole(no_color=True, soft_wrap=True).print(text, end=end)


def print_note(text: str, end: str = "\n") -> None:
    """Print a message to stderr, apart from the result."""
    SafeConsole(stderr=True, soft_wrap=True).print(text, end=end)


def write(text: str) -> None:
    """Write generated text without delay: escaped on a terminal, unchanged in a file or a pipe."""
    if sys.stdout.isatty():
        sys.stdout.write(escape_text(text))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode(errors="surrogateescape"))
    sys.stdout.flush()
