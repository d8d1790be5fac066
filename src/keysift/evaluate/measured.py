"""What evaluations find, as plain data without torch: tables, figures, pages and JSON are all made from these.

A record names its format and version; a field that changes its meaning raises the version.
"""

import math
from typing import Literal

from keysift.core.config import config
from keysift.core.provenance import Made

AS_TRAINED = "as trained"  # the setting that changes nothing


@config
class Subject:
    """The model that was measured."""

    name: str
    """How people call it: the name of its run, checkpoint or preset."""
    kind: str
    parameters: int
    trained_length: int | None
    """Tokens of a training sequence; None if the model does not say."""
    step: int | None
    """Training steps behind it; 0 if untrained, None if unknown."""


@config
class Cell:
    """How often a model was right at one context length, one depth and one setting of its inference."""

    length: int
    depth: float
    setting: str
    right: int
    asked: int

    @property
    def accuracy(self) -> float:
        return self.right / self.asked

    @property
    def interval(self) -> tuple[float, float]:
        return interval(self.right, self.asked)


def interval(right: int, asked: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval for a share, 95% by default: it does not collapse to a point at 0 or 100%."""
    share, spread = right / asked, z * z / asked
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / asked + spread / (4 * asked)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


@config
class Retrieval:
    """Accuracy by context length, depth and setting."""

    subject: Subject
    task: str
    chance: float
    cells: tuple[Cell, ...]
    made: Made
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
        """The setting with the most right answers; of equals the first, which is the model as trained."""
        return max((c for c in self.cells if (c.length, c.depth) == (length, depth)), key=lambda c: c.right)

    def over_depths(self, length: int, setting: str) -> Cell:
        """All depths together; the depth of the cell is their mean."""
        found = [c for c in self.cells if (c.length, c.setting) == (length, setting)]
        return Cell(
            length=length,
            depth=sum(c.depth for c in found) / len(found),
            setting=setting,
            right=sum(c.right for c in found),
            asked=sum(c.asked for c in found),
        )


@config
class TextLoss:
    """Of one text. The first token has nothing before it, so it is not scored."""

    subject: Subject
    text: str
    """Where the text came from."""
    tokens: int
    """Tokens scored."""
    bytes: int
    """Bytes of the text they stand for."""
    nats: float
    """Mean over the tokens."""
    bits_per_byte: float
    """Does not depend on the vocabulary, so models with different tokenizers can be compared."""
    context: int
    stride: int
    made: Made
    format: Literal["keysift-loss"] = "keysift-loss"
    version: Literal[1] = 1


@config
class Point:
    """Mean nats for a token with about `context` tokens before it."""

    context: int
    setting: str
    nats: float
    error: float
    """Standard error over documents; 0 where there is one."""
    documents: int


@config
class LossByPosition:
    subject: Subject
    text: str
    points: tuple[Point, ...]
    made: Made
    format: Literal["keysift-positions"] = "keysift-positions"
    version: Literal[1] = 1


@config
class Head:
    """One head or tile on one text. `window` and `acceptance` are None where the mechanism has none."""

    layer: int
    head: int
    window: float | None
    acceptance: float | None
    accepted: float
    """Share of the visible (query, key) pairs with a weight other than zero."""
    nothing: float
    """Share of the queries whose weights are all zero."""
    mass: float
    """Mean sum of a query's weights."""


@config
class Windows:
    """What every head has learned, and what it accepts on one text."""

    subject: Subject
    text: str
    tokens: int
    heads: tuple[Head, ...]
    made: Made
    format: Literal["keysift-windows"] = "keysift-windows"
    version: Literal[1] = 1


@config
class HeadMap:
    """What one head weighs, queries x keys, and the scores behind it."""

    name: str
    weights: tuple[tuple[float, ...], ...]
    scores: tuple[tuple[float, ...], ...]
    threshold: float | None
    """Scores up to here weigh nothing; None where the mechanism has no threshold."""


@config
class LayerMaps:
    heads: tuple[HeadMap, ...]


@config
class Relevance:
    """The relevance maps of every head on one text; the playground opens the same file."""

    subject: Subject
    text: str
    tokens: tuple[str, ...]
    layers: tuple[LayerMaps, ...]
    made: Made
    format: Literal["keysift-maps"] = "keysift-maps"
    version: Literal[1] = 1


@config
class MapFigures:
    """One relevance map in a few numbers."""

    head: str
    accepted: float
    """Share of the pairs a causal query sees with a weight other than zero."""
    mass: float
    """Mean sum of a query's weights."""
    most: float
    """The largest weight, and where it is."""
    query: int
    key: int


def map_figures(record: Relevance) -> list[MapFigures]:
    found = []
    for head in (head for layer in record.layers for head in layer.heads):
        rows = head.weights
        pairs = len(rows) * (len(rows) + 1) / 2
        most, query, key = max((w, q, k) for q, row in enumerate(rows) for k, w in enumerate(row))
        found.append(
            MapFigures(
                head=head.name,
                accepted=sum(w != 0 for row in rows for w in row) / pairs,
                mass=sum(map(sum, rows)) / len(rows),
                most=most,
                query=query,
                key=key,
            )
        )
    return found
