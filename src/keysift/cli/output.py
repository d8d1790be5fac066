"""How verbs speak: tables for people, JSON for scripts. Everything goes through core/shown.py."""

import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from keysift.core.config import to_dict
from keysift.core.shown import Door, shown_text


def console() -> Console:
    """On a terminal as wide as it is; in a file or a pipe wide enough for every table."""
    found = Door()
    return found if found.is_terminal else Door(width=max(found.width, 110))


def table(title: str | None = None) -> Table:
    """No frame and one blank between columns: fifteen promises fit on a small terminal."""
    return Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))


def print_json(value: Any) -> None:
    # The one control character that JSON leaves as it is; the door's spelling of it would not be JSON.
    print_plain(json.dumps(to_dict(value), indent=2).replace("\x7f", "\\u007f"))


def print_plain(text: str, end: str = "\n") -> None:
    """As it is, whatever the terminal: a script or a document reads this."""
    Door(no_color=True, soft_wrap=True).print(text, end=end)


def print_note(text: str, end: str = "\n") -> None:
    """Beside the result, on stderr: what a person should know and a script need not read."""
    Door(stderr=True, soft_wrap=True).print(text, end=end)


def write(text: str) -> None:
    """What a model wrote, at once: harmless on a terminal, the very bytes of the text in a file or a pipe."""
    if sys.stdout.isatty():
        sys.stdout.write(shown_text(text))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode(errors="surrogateescape"))
    sys.stdout.flush()
