"""Record of `keysift demo --million`: questions about one needle in texts of up to a million tokens."""

from typing import Literal

from keysift.core.config import config
from keysift.core.provenance import Provenance
from keysift.records.evaluation import Subject, interval


@config
class LongCell:
    """Answers after texts of one length, with one inference setting."""

    length: int
    """Tokens of a text, questions included."""
    setting: str
    correct: int
    total: int
    read_seconds: float
    """Time to read one text into the cache, median over texts. Preparing its keys is included."""
    answer_seconds: float
    """Time of one decoded token, which is the question, median over questions."""
    in_window: float | None
    """Keys that the heads of all layers could accept for a question, mean; None if they are not counted."""
    read: float | None
    """Keys of these that were read in fp32."""
    accepted: float | None
    """Keys of these with a weight above zero."""
    cache_bytes: int

    @property
    def accuracy(self) -> float:
        return self.correct / self.total

    @property
    def interval(self) -> tuple[float, float]:
        return interval(self.correct, self.total)


@config
class LongRecall:
    """Recall of needles in long texts by one model."""

    subject: Subject
    chance: float
    cells: tuple[LongCell, ...]
    made: Provenance
    format: Literal["keysift-long-recall"] = "keysift-long-recall"
    version: Literal[1] = 1

    @property
    def lengths(self) -> list[int]:
        return sorted({cell.length for cell in self.cells})

    def best(self, length: int) -> LongCell:
        """The setting with the most correct answers at a length; the first of equals."""
        return max((cell for cell in self.cells if cell.length == length), key=lambda cell: cell.correct)
