"""Retrieval accuracy by context length and depth: does the model find one key among many?

A task provides rows of tokens with targets. A row is correct if every target in it is predicted. Predicting each token
of an answer from the correct tokens before it is equivalent to greedy decoding, so one forward pass is enough.

Letters: B rows, T tokens.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from keysift.core.config import to_dict
from keysift.core.errors import RangeError
from keysift.data.batches import IGNORE
from keysift.evaluate.cell_log import CellLog
from keysift.evaluate.measured_model import MeasuredModel
from keysift.evaluate.memory import BATCH_TOKENS, check_memory
from keysift.evaluate.retrieval_tasks import Task, find_task
from keysift.evaluate.scoring import score_targets
from keysift.models.language_model import LanguageModel
from keysift.nn.inference import Inference
from keysift.records.evaluation import AS_TRAINED, WINDOWS_EXPANDED, Cell, Retrieval, rope_setting
from keysift.runs import machine

Array = npt.NDArray[np.int64]
# Measures cells of (length, depth, name of the setting, setting), and calls a function with each.
MeasureCells = Callable[[Sequence[tuple[int, float, str, Inference]], Callable[[Cell], None]], None]


def inference_settings(
    rope_factors: Iterable[float] = (), *, rope_scalings: Iterable[str] = (), expand_windows: bool | int = False
) -> dict[str, Inference]:
    """Settings for running a model beyond its training length, by name. The first is the model as trained."""
    settings = {AS_TRAINED: Inference()}
    if expand_windows:
        settings[WINDOWS_EXPANDED] = Inference(expand_windows=expand_windows)
    for factor in rope_factors:
        if factor != 1:
            settings[rope_setting(factor)] = Inference(rope_factor=factor)
    for scaling in rope_scalings:
        settings[f"RoPE {scaling}"] = Inference(rope_scaling=scaling)
    return settings


def measure_retrieval(
    measured: MeasuredModel,
    task: str,
    *,
    lengths: Sequence[int],
    depths: Sequence[float],
    settings: Mapping[str, Inference],
    instances: int,
    seed: int,
    log_folder: Path | None = None,
    command: str = "",
    on_cell: Callable[[Cell], None] = lambda cell: None,
    elsewhere: MeasureCells | None = None,
) -> Retrieval:
    """Measure the accuracy on the named task at each length, depth and setting.

    Finished cells are logged in `log_folder`; a later call with the same model and seed reads them from there.
    `elsewhere` measures the other cells, in any order, and reports each; by default they are measured here.
    """
    start = time.monotonic()
    opened_task = find_task(task, measured.tokenizer, seed=seed, trained_on=measured.trained_on)
    check_memory(measured.model, lengths, settings.values())
    log = CellLog(log_folder, task, {"subject": to_dict(measured.subject), "seed": seed})
    finished = [cell for cell in log.cells() if cell.total == instances]

    def finish(cell: Cell) -> None:
        finished.append(cell)
        log.add(cell)
        on_cell(cell)

    if elsewhere is not None:
        known = {(cell.length, cell.depth, cell.setting) for cell in finished}
        grid = [(length, depth, name) for length in lengths for depth in depths for name in settings]
        elsewhere([(*place, settings[place[2]]) for place in grid if place not in known], finish)
    cells = accuracy_grid(
        measured.model,
        opened_task,
        lengths=lengths,
        depths=depths,
        settings=settings,
        instances=instances,
        finished=finished,
        on_cell=finish,
    )
    return Retrieval(
        subject=measured.subject,
        task=task,
        chance=opened_task.chance,
        cells=tuple(cells),
        made=machine.record_provenance(command, start),
    )


def accuracy_grid(
    model: LanguageModel,
    task: Task,
    *,
    lengths: Iterable[int],
    depths: Iterable[float],
    settings: Mapping[str, Inference],
    instances: int,
    batch_tokens: int = BATCH_TOKENS,
    finished: Iterable[Cell] = (),
    on_cell: Callable[[Cell], None] = lambda cell: None,
) -> list[Cell]:
    """Measure one cell for each length, depth and setting, except the cells in `finished`.

    `on_cell` is called with each new cell.
    """
    if instances < 1:
        raise RangeError(f"a cell needs at least one instance, got {instances}")
    finished_cells = {(cell.length, cell.depth, cell.setting): cell for cell in finished if cell.total == instances}
    cells = []
    for length in lengths:
        for depth in depths:
            for setting, inference in settings.items():
                cell = finished_cells.get((length, depth, setting))
                if cell is None:
                    rows = [task.row(number, length=length, depth=depth) for number in range(instances)]
                    correct = _correct_rows(model, rows, inference, max(1, batch_tokens // length))
                    cell = Cell(length=length, depth=depth, setting=setting, correct=correct, total=instances)
                    on_cell(cell)
                cells.append(cell)
    return cells


def count_correct_targets(
    model: LanguageModel,
    rows: Sequence[tuple[Array, Array]],
    *,
    inference: Inference | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> tuple[int, int]:
    """Count correctly predicted targets and all targets, for rows with several answers of one token each."""
    correct = total = 0
    for tokens, targets, keep in _batches(rows, max(1, batch_tokens // len(rows[0][0]))):
        predicted = score_targets(model, tokens, targets, keep_BT=keep, inference=inference).predicted_BT
        correct += int(((predicted == targets) & (targets != IGNORE)).sum())
        total += int((targets != IGNORE).sum())
    return correct, total


def _correct_rows(
    model: LanguageModel, rows: Sequence[tuple[Array, Array]], inference: Inference, batch_size: int
) -> int:
    correct = 0
    for tokens, targets, keep in _batches(rows, batch_size):
        predicted = score_targets(model, tokens, targets, keep_BT=keep, inference=inference).predicted_BT
        correct += int(((predicted == targets) | (targets == IGNORE)).all(1).sum())
    return correct


def _batches(
    rows: Sequence[tuple[Array, Array]], batch_size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Tokens, targets and keep of each batch, padded on the left."""
    for first in range(0, len(rows), batch_size):
        batch = rows[first : first + batch_size]
        longest = max(len(tokens) for tokens, _ in batch)
        tokens = _left_padded([tokens for tokens, _ in batch], longest, 0)
        targets = _left_padded([targets for _, targets in batch], longest, IGNORE)
        keep = torch.stack([torch.arange(longest) >= longest - len(tokens) for tokens, _ in batch])
        yield tokens, targets, keep


def _left_padded(rows: Sequence[Array], length: int, fill: int) -> torch.Tensor:
    return torch.from_numpy(np.stack([np.pad(row, (length - len(row), 0), constant_values=fill) for row in rows]))
