"""Loss by position: does more context help, and what happens beyond the training length?

Each long document contributes its middle N + 1 tokens. The loss at context c is the mean over positions within 10% of
c; its error is the standard error over documents.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from keysift.core.errors import DataError
from keysift.evaluate.measured_model import MeasuredModel
from keysift.evaluate.memory import check_memory
from keysift.evaluate.scoring import score_targets
from keysift.evaluate.texts import long_documents
from keysift.models.language_model import LanguageModel
from keysift.nn.inference import Inference
from keysift.records.evaluation import LossByPosition, Point
from keysift.runs import machine

Array = npt.NDArray[np.int64]
TOLERANCE = 0.1  # positions within this share of a context are averaged


def measure_positions(
    measured: MeasuredModel,
    text: str,
    *,
    length: int,
    contexts: Sequence[int],
    documents: int,
    settings: Mapping[str, Inference],
    command: str = "",
    on_document: Callable[[str, int, int], None] = lambda setting, done, total: None,
) -> LossByPosition:
    """Loss at each of `contexts`, on the first `documents` documents with more than `length` tokens.

    A point averages positions up to 10% beyond its context, so `length` should exceed the largest context by that.
    """
    start = time.monotonic()
    check_memory(measured.model, [length], settings.values())
    rows = middle_spans(long_documents(text, measured.tokenizer, length, documents), length)
    total = len(settings) * len(rows)
    losses = losses_by_position(
        measured.model, rows, settings=settings, on_row=lambda setting, done: on_document(setting, done, total)
    )
    points = tuple(loss_points(losses, contexts))
    return LossByPosition(
        subject=measured.subject, text=text, points=points, made=machine.record_provenance(command, start)
    )


def middle_spans(documents: Iterable[Array], length: int) -> list[Array]:
    """The middle `length` + 1 tokens of every document that has as many."""
    spans = []
    for ids in documents:
        spare = len(ids) - (length + 1)
        if spare >= 0:
            spans.append(ids[spare // 2 : spare // 2 + length + 1])
    if not spans:
        raise DataError(
            f"no document has the {length + 1} tokens that a context of {length} needs; "
            f"give longer documents or a shorter length"
        )
    return spans


def losses_by_position(
    model: LanguageModel,
    rows: Sequence[Array],
    *,
    settings: Mapping[str, Inference],
    on_row: Callable[[str, int], None] = lambda setting, done: None,
) -> dict[str, npt.NDArray[np.float32]]:
    """Nats, documents x positions, for each setting. Rows are long, so each is a batch of its own."""
    by_setting, done = {}, 0
    for setting, inference in settings.items():
        losses = []
        for ids in rows:
            tokens = torch.from_numpy(ids.astype(np.int64))[None]
            losses.append(score_targets(model, tokens[:, :-1], tokens[:, 1:], inference=inference).loss_BT[0].numpy())
            done += 1
            on_row(setting, done)
        by_setting[setting] = np.stack(losses)
    return by_setting


def loss_points(losses: Mapping[str, npt.NDArray[np.float32]], contexts: Iterable[int]) -> list[Point]:
    """Mean loss around each context with its standard error, for each setting. Contexts beyond the rows are skipped."""
    points = []
    contexts = list(contexts)
    for setting, loss in losses.items():
        for context in contexts:
            # Position p has p + 1 tokens before its target; at least one position counts even at context 1.
            low, high = round(context * (1 - TOLERANCE)), round(context * (1 + TOLERANCE))
            near = loss[:, max(0, low - 1) : max(low, high)]
            if near.shape[1] == 0:
                continue
            means = near.astype(np.float64).mean(1)
            error = float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) > 1 else 0.0
            points.append(
                Point(context=context, setting=setting, nats=float(means.mean()), error=error, documents=len(means))
            )
    return points
