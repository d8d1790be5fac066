"""Result of activation patching: how far each patched value moves the answer from one prompt to the other. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from keysift.core.notebook import Shown


@dataclass(frozen=True, kw_only=True)
class PatchMap(Shown):
    """Effects by row (the patched address) and column (a token, or a head).

    An effect of 0 leaves the answer of the target, 1 gives that of the source; it can be negative or exceed 1.
    """

    PAGE: ClassVar[str] = "keysift.web.inspect.patching"
    HEIGHT: ClassVar[int] = 460

    model: str
    source: str  # the prompt whose values are read
    target: str  # the prompt into which they are written
    measure: str  # what is measured, in words
    source_value: float
    target_value: float
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    effects: tuple[tuple[float, ...], ...]

    def strongest(self, count: int = 5) -> Sequence[tuple[str, str, float]]:
        """Row, column and effect of the largest effects, the largest first."""
        cells = [
            (row, column, effect)
            for row, effects in zip(self.rows, self.effects, strict=True)
            for column, effect in zip(self.columns, effects, strict=True)
        ]
        return sorted(cells, key=lambda cell: -cell[2])[:count]
