"""Escape untrusted text for the terminal: file names, fields of files, error messages, generated text.

All terminal output goes through this module. Characters that control a terminal or reorder a line are escaped: ESC as
\\x1b, the right-to-left override as \\u202e. Rich markup is off, so square brackets stay; use `styled` for styles.
"""

from functools import lru_cache
from typing import Any
from unicodedata import category

from rich.console import Console
from rich.progress import Task, TextColumn
from rich.text import Text

_JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}\N{SOFT HYPHEN}"  # part of how words and emoji are written


def escape_line(text: object) -> str:
    """Escape for one line: newlines and tabs are escaped too."""
    return "".join(map(_escape, str(text)))


def escape_text(text: str) -> str:
    """Escape, but keep newlines and tabs."""
    return "".join(c if c in "\n\t" else _escape(c) for c in text)


@lru_cache(4096)
def _escape(character: str) -> str:
    # Controls, lone surrogates, line separators and invisible format characters.
    if category(character) not in ("Cc", "Cs", "Zl", "Zp", "Cf") or character in _JOINERS:
        return character
    return character.encode("unicode_escape").decode()


def styled(*parts: str | tuple[str, str]) -> Text:
    """Join parts that are plain or have a style: styled("result: ", ("passed", "green"))."""
    text = Text()
    for part in parts:
        words, style = part if isinstance(part, tuple) else (part, "")
        text.append(escape_text(words), style)
    return text


class SafeConsole(Console):
    """A console that escapes every string."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        return super().render_str(escape_text(text), **settings)


class SafeTextColumn(TextColumn):
    """A text column of a progress display that escapes its text."""

    def render(self, task: Task) -> Text:
        return Text(escape_line(self.text_format.format(task=task)))
