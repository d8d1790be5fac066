"""Records of evaluations: loss, loss by position, retrieval, windows and relevance maps.

A record names its format and version. A field that changes its meaning requires a new version.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

from keysift.core import safe_json
from keysift.core.config import config, from_dict, to_dict
from keysift.core.disk import write_atomic
from keysift.core.errors import ConfigError, DataError
from keysift.core.provenance import Provenance

# Names of inference settings in records.
AS_TRAINED = "as trained"
WINDOWS_EXPANDED = "windows expanded"
ROPE_SCALED = "RoPE scaled"  # by the factor that fits the length


def rope_setting(factor: float) -> str:
    """Name of the setting that divides positions by `factor`."""
    return f"RoPE x{factor:g}"


@config
class Subject:
    """The model that was measured."""

    name: str
    """Path of the run or checkpoint, or name of the preset."""
    kind: str
    parameters: int
    trained_length: int | None
    """Tokens of a training sequence; None if unknown."""
    step: int | None
    """Training steps; 0 if untrained, None if unknown."""


@config
class Cell:
    """Correct answers at one context length, depth and inference setting."""

    length: int
    depth: float
    setting: str
    correct: int
    total: int

    @property
    def accuracy(self) -> float:
        return self.correct / self.total

    @property
    def interval(self) -> tuple[float, float]:
        return interval(self.correct, self.total)


def interval(correct: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson score interval of a proportion, 95% by default. It has a width at 0% and 100% too."""
    p, z2_over_n = correct / total, z * z / total
    centre = (p + z2_over_n / 2) / (1 + z2_over_n)
    half_width = z * math.sqrt(p * (1 - p) / total + z2_over_n / (4 * total)) / (1 + z2_over_n)
    return max(0.0, centre - half_width), min(1.0, centre + half_width)


@config
class Retrieval:
    """Accuracy by context length, depth and setting."""

    subject: Subject
    task: str
    chance: float
    cells: tuple[Cell, ...]
    made: Provenance
    format: Literal["keysift-retrieval"] = "keysift-retrieval"
    version: Literal[1] = 1

    @property
    def lengths(self) -> list[int]:
        return sorted({cell.length for cell in self.cells})

    @property
    def depths(self) -> list[float]:
        return sorted({cell.depth for cell in self.cells})

    @property
    def settings(self) -> list[str]:
        return list(dict.fromkeys(cell.setting for cell in self.cells))

    def best(self, length: int, depth: float) -> Cell:
        """The setting with the highest accuracy; the first of equals, which is the model as trained."""
        return max((c for c in self.cells if (c.length, c.depth) == (length, depth)), key=lambda c: c.accuracy)

    def over_depths(self, length: int, setting: str) -> Cell:
        """All depths in one cell, whose depth is their mean."""
        cells = [c for c in self.cells if (c.length, c.setting) == (length, setting)]
        return Cell(
            length=length,
            depth=sum(c.depth for c in cells) / len(cells),
            setting=setting,
            correct=sum(c.correct for c in cells),
            total=sum(c.total for c in cells),
        )


def pooled(records: Sequence[Retrieval]) -> Retrieval:
    """One record with the questions of several; the other fields are those of the first."""
    counts: dict[tuple[int, float, str], tuple[int, int]] = {}
    for cell in (cell for record in records for cell in record.cells):
        correct, total = counts.get((cell.length, cell.depth, cell.setting), (0, 0))
        counts[cell.length, cell.depth, cell.setting] = (correct + cell.correct, total + cell.total)
    cells = tuple(
        Cell(length=length, depth=depth, setting=setting, correct=correct, total=total)
        for (length, depth, setting), (correct, total) in counts.items()
    )
    return replace(records[0], cells=cells)


@config
class TextLoss:
    """Loss of a text. The first token has no context, so it is not scored."""

    subject: Subject
    text: str
    """Source of the text."""
    tokens: int
    """Tokens scored."""
    bytes: int
    """Bytes that the scored tokens decode to."""
    nats: float
    """Mean over the tokens."""
    bits_per_byte: float
    """Comparable between tokenizers."""
    context: int
    stride: int
    made: Provenance
    format: Literal["keysift-loss"] = "keysift-loss"
    version: Literal[1] = 1


@config
class Point:
    """Mean loss of tokens with about `context` tokens before them."""

    context: int
    setting: str
    nats: float
    error: float
    """Standard error over documents; 0 for a single document."""
    documents: int


@config
class LossByPosition:
    """Loss by the number of tokens before the prediction."""

    subject: Subject
    text: str
    points: tuple[Point, ...]
    made: Provenance
    format: Literal["keysift-positions"] = "keysift-positions"
    version: Literal[1] = 1


@config
class Head:
    """Statistics of one head or tile on one text. `window` and `acceptance` are None if the mechanism lacks them."""

    layer: int
    head: int
    window: float | None
    acceptance: float | None
    accepted: float
    """Share of visible (query, key) pairs with a nonzero weight."""
    nothing: float
    """Share of queries whose weights are all zero."""
    mass: float
    """Mean over queries of the sum of weights."""


@config
class TileCount:
    """Keys of one tile per decoded token, after a context of `length` tokens; means over tokens."""

    layer: int
    head: int
    length: int
    in_window: float
    """Keys that could be accepted."""
    read: float
    """Keys that were read in fp32. A bound refused the others (docs/search.md)."""
    accepted: float
    """Keys with a weight above zero."""


@config
class Windows:
    """Learned window and acceptance of every head, and the keys it accepts on one text."""

    subject: Subject
    text: str
    tokens: int
    heads: tuple[Head, ...]
    made: Provenance
    counts: tuple[TileCount, ...] = ()
    """Keys of every tile by context length, if measured."""
    format: Literal["keysift-windows"] = "keysift-windows"
    version: Literal[1] = 1


@config
class HeadMap:
    """Attention weights and scores of one head, queries x keys."""

    name: str
    weights: tuple[tuple[float, ...], ...]
    scores: tuple[tuple[float, ...], ...]
    threshold: float | None
    """Scores up to this value have weight zero; None if the mechanism has no threshold."""


@config
class LayerMaps:
    """Maps of the heads of one layer."""

    heads: tuple[HeadMap, ...]


@config
class RelevanceMaps:
    """Relevance maps of heads on one text. The playground opens this file."""

    subject: Subject
    text: str
    tokens: tuple[str, ...]
    layers: tuple[LayerMaps, ...]
    made: Provenance
    format: Literal["keysift-maps"] = "keysift-maps"
    version: Literal[1] = 1


@config
class MapSummary:
    """Summary numbers of one relevance map."""

    head: str
    accepted: float
    """Share of causally visible pairs with a nonzero weight."""
    mass: float
    """Mean over queries of the sum of weights."""
    most: float
    """The largest weight, at (query, key)."""
    query: int
    key: int


def summarize_maps(record: RelevanceMaps) -> list[MapSummary]:
    """One summary for each head."""
    summaries = []
    for head in (head for layer in record.layers for head in layer.heads):
        rows = head.weights
        pairs = len(rows) * (len(rows) + 1) / 2
        most, query, key = max((w, q, k) for q, row in enumerate(rows) for k, w in enumerate(row))
        summaries.append(
            MapSummary(
                head=head.name,
                accepted=sum(w != 0 for row in rows for w in row) / pairs,
                mass=sum(map(sum, rows)) / len(rows),
                most=most,
                query=query,
                key=key,
            )
        )
    return summaries


Record = Retrieval | LossByPosition | TextLoss | Windows | RelevanceMaps
FORMATS: dict[str, type[Any]] = {
    "keysift-retrieval": Retrieval,
    "keysift-loss": TextLoss,
    "keysift-positions": LossByPosition,
    "keysift-windows": Windows,
    "keysift-maps": RelevanceMaps,
}


def write_record(record: Any, folder: Path, name: str) -> Path:
    """Write a record as `name`.json. Maps are large, so they are written without line breaks."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    write_atomic(path, json.dumps(to_dict(record), indent=None if isinstance(record, RelevanceMaps) else 1) + "\n")
    return path


def read_record(path: Path) -> Record:
    """Read a record, as the class that its format names."""
    try:
        data = safe_json.load(path)
        return cast(Record, from_dict(FORMATS[data["format"]], data))
    except (OSError, ValueError, KeyError, TypeError, ConfigError) as error:
        reason = error if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        raise DataError(f"{path} is not a record of keysift eval ({reason}); measure again") from error


def read_records(folder: Path) -> tuple[list[Record], list[str]]:
    """Every record in a folder, and an error message for each JSON file that is not a record."""
    records, errors = [], []
    for path in sorted(path for path in folder.glob("*.json") if path.is_file()):
        try:
            records.append(read_record(path))
        except DataError as error:
            errors.append(str(error))
    return records, errors
