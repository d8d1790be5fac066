"""Heat maps as SVG: tables of shares, and relevance maps in which exact zeros are blank."""

import base64
import hashlib
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keysift.web.shared.labels import wrapped
from keysift.web.shared.page import safe

_LEFT, _TOP, _CELL_WIDTH, _CELL_HEIGHT = 66, 24, 76, 44
_NOTE_SIZE, _NOTE_ROW = 10, 12
_LEVELS = 12  # shades of a relevance map


@dataclass(frozen=True)
class Cell:
    """A cell: a share from 0 to 1, and a note below its percentage."""

    share: float
    note: str = ""


def heat_map(
    name: str,
    cells: Mapping[tuple[str, str], Cell],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    labels: tuple[str, str],
    limit: int | None = None,
) -> str:
    """Draw `cells`, indexed by (row, column). `labels` name the two axes; `limit` draws a line after that column."""
    notes = {
        note: wrapped(note, _CELL_WIDTH - 6, _NOTE_SIZE) for note in {cell.note for cell in cells.values()} if note
    }
    cell_height = _CELL_HEIGHT + _NOTE_ROW * max((len(note) - 1 for note in notes.values()), default=0)
    width, height = _LEFT + _CELL_WIDTH * len(columns) + 12, _TOP + cell_height * len(rows) + 44
    parts = [_text(_LEFT - 8, _TOP - 8, labels[0], "end", "tick")]
    for y, row in enumerate(rows):
        parts.append(_text(_LEFT - 8, _TOP + cell_height * (y + 0.5) + 4, row, "end", "tick"))
        for x, column in enumerate(columns):
            if (row, column) in cells:
                parts.append(
                    _cell(_LEFT + _CELL_WIDTH * x, _TOP + cell_height * y, cells[row, column], notes, cell_height)
                )
    base = _TOP + cell_height * len(rows)
    parts += [
        _text(_LEFT + _CELL_WIDTH * (x + 0.5), base + 17, column, "middle", "tick") for x, column in enumerate(columns)
    ]
    parts.append(_text(_LEFT + _CELL_WIDTH * len(columns), base + 36, labels[1], "end", "tick"))
    if limit:
        at = _LEFT + _CELL_WIDTH * limit
        parts.append(f"<path d='M{at} {_TOP - 6} V{base + 6}' stroke='var(--moved)' stroke-width='3'/>")
    return _svg(name, width, height, parts)


def _cell(x: float, y: float, cell: Cell, notes: Mapping[str, Sequence[str]], height: float) -> str:
    share = min(max(cell.share, 0.0), 1.0)
    ink = "var(--heat-low)" if share > 0.55 else "var(--ink)"
    shade = f"fill='var(--heat-high)' fill-opacity='{share:.3f}'"
    parts = [f"<rect x='{x}' y='{y}' width='{_CELL_WIDTH}' height='{height}' {shade} stroke='var(--line)'/>"]
    rows = notes.get(cell.note, ())
    middle = y + height / 2 + 4 - _NOTE_ROW * len(rows) / 2
    parts.append(_text(x + _CELL_WIDTH / 2, middle, f"{100 * share:.0f}%", "middle", ink=ink))
    for place, row in enumerate(rows, 1):
        at = middle + 2 + _NOTE_ROW * place
        parts.append(_text(x + _CELL_WIDTH / 2, at, row, "middle", ink=ink, size=_NOTE_SIZE))
    return "".join(parts)


def relevance_map(name: str, weights: Sequence[Sequence[float]], size: int = 180) -> str:
    """Draw attention weights, queries from top to bottom and keys from left to right.

    The largest weight has the darkest shade. Exact zeros are blank; any other weight has at least the lightest shade.
    Negative weights have a colour of their own. The shades are a grey PNG that masks the colour of the page's theme,
    because a rectangle per run of equal cells takes many times the space.
    """
    largest = max((abs(weight) for row in weights for weight in row), default=0.0) or 1.0
    length = len(weights)
    parts = [f"<rect width='{length}' height='{length}' fill='var(--heat-low)'/>"]
    for sign, colour in ((1, "--heat-high"), (-1, "--heat-under")):
        shades = [bytes(_shade(sign * weight / largest) for weight in row).ljust(length, b"\0") for row in weights]
        if any(map(any, shades)):
            image = base64.b64encode(grey_png(shades)).decode()
            mask = f"shades-{hashlib.sha256(image.encode()).hexdigest()[:16]}"
            box = f"width='{length}' height='{length}'"
            parts.append(
                f"<mask id='{mask}' maskUnits='userSpaceOnUse' x='0' y='0' {box}>"
                f"<image {box} preserveAspectRatio='none' style='image-rendering:pixelated' "
                f"href='data:image/png;base64,{image}'/></mask>"
                f"<rect {box} fill='var({colour})' mask='url(#{mask})'/>"
            )
    label = safe(name)
    return (
        f"<svg viewBox='0 0 {length} {length}' width='{size}' height='{size}' role='img' aria-label='{label}' "
        f"shape-rendering='crispEdges'><title>{safe(name)}</title>{''.join(parts)}</svg>"
    )


def _shade(share: float) -> int:
    """Grey level from 0 (blank) to 255 (dark) of a weight, as a share of the largest."""
    return 0 if share <= 0 else round(255 * max(1, round(share * _LEVELS)) / _LEVELS)


def grey_png(rows: Sequence[bytes]) -> bytes:
    """A PNG image with one byte per pixel, 0 black and 255 white."""
    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 0, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
    chunks = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    parts = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _svg(name: str, width: float, height: float, parts: Sequence[str]) -> str:
    label = safe(name)
    return (
        f"<svg class='heat' viewBox='0 0 {width} {height}' width='{width}' height='{height}' role='img' "
        f"aria-label='{label}' font-family='system-ui, sans-serif' font-size='13'>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, anchor: str, css: str = "", *, ink: str = "", size: int = 13) -> str:
    # Only a style overrides the text colour of the style sheet; an attribute does not.
    style = f" style='fill:{ink}'" if ink else ""
    kind = f" class='{css}'" if css else ""
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-size='{size}'{kind}{style}>{safe(text)}</text>"
