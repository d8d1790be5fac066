"""Sizes of labels in drawings: widths of text without a font, and lines of limited width."""

import re

_NARROW, _WIDE = set("iljftrI.,:;'|!()[]{}/ -"), set("mwMW%@—…")


def text_width(text: str, size: float = 13) -> float:
    """Upper bound of the width of a text in pixels, for common sans-serif fonts; DejaVu Sans is the widest of them."""
    return size * sum(map(_em, text))


def _em(character: str) -> float:
    if character in _NARROW:
        return 0.42
    if character in _WIDE or ord(character) > 0x24F:
        return 1.05
    return 0.79 if character.isupper() else 0.66


def wrapped(text: str, width: float, size: float = 13) -> list[str]:
    """Lines no wider than `width` pixels, broken at spaces, and inside words that are too long."""
    lines = [""]
    for word in re.findall(r"\S+|\s+", text):
        for part in _parts(word, width, size):
            if lines[-1] and text_width(lines[-1] + part, size) > width:
                lines.append("")
            lines[-1] += part if lines[-1] else part.lstrip()
    return [line.rstrip() for line in lines]


def _parts(word: str, width: float, size: float) -> list[str]:
    if text_width(word, size) <= width:
        return [word]
    parts = [""]
    for character in word:
        if parts[-1] and text_width(parts[-1] + character, size) > width:
            parts.append("")
        parts[-1] += character
    return parts
