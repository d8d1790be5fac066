"""The one door for text from outside on its way to a terminal: file names, fields of files, what a model writes.

Characters that command a terminal or rearrange a line are spelled out: ESC as \\x1b, the right-to-left override as
\\u202e.
"""

from functools import lru_cache
from unicodedata import category

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
    if category(character) in ("Cc", "Cs", "Zl", "Zp", "Cf") and character not in _JOINERS:
        return character.encode("ascii", "backslashreplace").decode() if ord(character) > 0x7F else _escape(character)
    return character


def _escape(character: str) -> str:
    return {"\n": r"\n", "\t": r"\t", "\r": r"\r"}.get(character, f"\\x{ord(character):02x}")
