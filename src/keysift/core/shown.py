"""The one door for text on its way to a terminal: file names, fields of files, error messages, what a model writes.

Characters that command a terminal or rearrange a line are spelled out: ESC as \\x1b, the right-to-left override as
\\u202e. Square brackets are square brackets: rich's markup is off, and what is to be styled says so by `styled`.
"""

from functools import lru_cache
from typing import Any
from unicodedata import category

from rich.console import Console
from rich.progress import Task, TextColumn
from rich.text import Text

_JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}\N{SOFT HYPHEN}"  # part of how words and emoji are written


def shown(text: object) -> str:
    """On one line."""
    return "".join(map(_harmless, str(text)))


def shown_text(text: str) -> str:
    """With its lines and tabs."""
    return "".join(c if c in "\n\t" else _harmless(c) for c in text)


@lru_cache(4096)
def _harmless(character: str) -> str:
    # Controls, half surrogate pairs, separators of lines, and what formats without being seen.
    if category(character) not in ("Cc", "Cs", "Zl", "Zp", "Cf") or character in _JOINERS:
        return character
    return character.encode("unicode_escape").decode()


def styled(*parts: str | tuple[str, str]) -> Text:
    """Pieces of text, each plain or with a style: styled("it ", ("holds", "green"))."""
    text = Text()
    for part in parts:
        words, style = part if isinstance(part, tuple) else (part, "")
        text.append(shown_text(words), style)
    return text


class Door(Console):
    """A console to which every string is foreign."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        return super().render_str(shown_text(text), **settings)


class Words(TextColumn):
    """A column of a progress bar."""

    def render(self, task: Task) -> Text:
        return Text(shown(self.text_format.format(task=task)))
