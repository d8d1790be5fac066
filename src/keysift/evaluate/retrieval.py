"""Retrieval: does the model find one key among many, at every context length and depth?

A task gives rows of tokens with targets; a row counts as right if every target of it is predicted. Predicting each
token of an answer given the ones before it is the same as writing the answer greedily: one reading of the row decides.

Letters: B rows, T tokens.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from keysift.core.errors import RangeError
from keysift.data.batches import IGNORE
from keysift.evaluate.measured import AS_TRAINED, Cell
from keysift.evaluate.reading import read
from keysift.models.language import LanguageModel
from keysift.nn.inference import Inference

Array = npt.NDArray[np.int64]


class Task(Protocol):
    """`row` depends on its arguments alone, so a grid can be resumed cell by cell."""

    @property
    def name(self) -> str: ...
    @property
    def chance(self) -> float: ...
    def row(self, number: int, *, length: int, depth: float) -> tuple[Array, Array]: ...


def settings_of(rope_factors: Iterable[float] = (), *, expand_windows: bool | int = False) -> dict[str, Inference]:
    """Ways to run a model beyond its training length, by name; the first is the model as it was trained."""
    found = {AS_TRAINED: Inference()}
    if expand_windows:
        found["windows expanded"] = Inference(expand_windows=expand_windows)
    for factor in rope_factors:
        if factor != 1:
            found[f"RoPE x{factor:g}"] = Inference(rope_factor=factor)
    return found


def grid(
    model: LanguageModel,
    task: Task,
    *,
    lengths: Iterable[int],
    depths: Iterable[float],
    settings: dict[str, Inference],
    instances: int,
    batch_tokens: int = 2**16,
    done: Iterable[Cell] = (),
    on_cell: Callable[[Cell], None] = lambda cell: None,
) -> list[Cell]:
    """One cell for each length, depth and setting; `done` are cells that need not be read again."""
    if instances < 1:
        raise RangeError(f"a cell needs at least one instance, got {instances}")
    known = {(cell.length, cell.depth, cell.setting): cell for cell in done if cell.asked == instances}
    cells = []
    for length in lengths:
        for depth in depths:
            for setting, inference in settings.items():
                cell = known.get((length, depth, setting))
                if cell is None:
                    right = _right(model, task, length, depth, inference, instances, max(1, batch_tokens // length))
                    cell = Cell(length=length, depth=depth, setting=setting, right=right, asked=instances)
                    on_cell(cell)
                cells.append(cell)
    return cells


def answers(
    model: LanguageModel,
    rows: Sequence[tuple[Array, Array]],
    *,
    inference: Inference | None = None,
    batch_tokens: int = 2**16,
) -> tuple[int, int]:
    """How many targets are predicted and how many there are, where a row asks several questions of one token."""
    right = asked = 0
    batch = max(1, batch_tokens // len(rows[0][0]))
    for first in range(0, len(rows), batch):
        tokens, targets, keep = _left_padded(list(rows[first : first + batch]))
        found = read(model, tokens, targets, keep_BT=keep, inference=inference)
        right += int(((found.predicted_BT == targets) & (targets != IGNORE)).sum())
        asked += int((targets != IGNORE).sum())
    return right, asked


def _right(
    model: LanguageModel, task: Task, length: int, depth: float, inference: Inference, instances: int, batch: int
) -> int:
    right = 0
    for first in range(0, instances, batch):
        rows = [task.row(n, length=length, depth=depth) for n in range(first, min(first + batch, instances))]
        tokens, targets, keep = _left_padded(rows)
        found = read(model, tokens, targets, keep_BT=keep, inference=inference)
        right += int(((found.predicted_BT == targets) | (targets == IGNORE)).all(1).sum())
    return right


def _left_padded(rows: list[tuple[Array, Array]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    longest = max(len(tokens) for tokens, _ in rows)

    def padded(parts: Iterator[Array], fill: int) -> torch.Tensor:
        return torch.from_numpy(
            np.stack([np.pad(part, (longest - len(part), 0), constant_values=fill) for part in parts])
        )

    keep = torch.stack([torch.arange(longest) >= longest - len(tokens) for tokens, _ in rows])
    return padded((tokens for tokens, _ in rows), 0), padded((targets for _, targets in rows), IGNORE), keep
