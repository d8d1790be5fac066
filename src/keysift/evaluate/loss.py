"""Loss of a text: nats per token and bits per byte.

A text longer than the context is read in overlapping chunks. Each token is scored once, with at least
`context - stride` tokens before it (except in the first chunk). Begin and end tokens of documents
are read as context and are not scored.
"""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from keysift.core.errors import RangeError
from keysift.data.batches import IGNORE
from keysift.evaluate import texts
from keysift.evaluate.measured_model import MeasuredModel
from keysift.evaluate.memory import check_memory
from keysift.evaluate.scoring import score_targets
from keysift.models.language_model import LanguageModel
from keysift.nn.inference import Inference
from keysift.records.evaluation import TextLoss
from keysift.runs import machine

Losses = npt.NDArray[np.float32]


class LossMeasurement(NamedTuple):
    """The record, and the loss of every scored token with its id."""

    record: TextLoss
    ids: npt.NDArray[np.int64]
    losses: Losses


def measure_loss(
    measured: MeasuredModel,
    text: str,
    *,
    tokens: int,
    context: int | None = None,
    stride: int | None = None,
    command: str = "",
    on_tokens: Callable[[int, int], None] = lambda scored, total: None,
) -> LossMeasurement:
    """Loss of the first `tokens` tokens of a text.

    context     defaults to the training length
    stride      defaults to half of the context
    on_tokens   receives the number of tokens scored so far and the total
    """
    start = time.monotonic()
    context = context or measured.subject.trained_length or 1024
    stride = stride or max(1, context // 2)
    ids, is_text, text_bytes = texts.first_tokens(text, measured.tokenizer, tokens)
    total = len(ids) - 1
    check_memory(measured.model, [min(context, total)])
    losses = token_losses(
        measured.model, ids, context=context, stride=stride, on_tokens=lambda scored: on_tokens(scored, total)
    )
    scored = is_text[1:]
    ids, losses = ids[1:][scored], losses[scored]
    nats, bits = nats_and_bits(losses, text_bytes)
    record = TextLoss(
        subject=measured.subject,
        text=text,
        tokens=len(losses),
        bytes=text_bytes,
        nats=nats,
        bits_per_byte=bits,
        context=context,
        stride=stride,
        made=machine.record_provenance(command, start),
    )
    return LossMeasurement(record, ids, losses)


def nats_and_bits(losses: Losses, text_bytes: int) -> tuple[float, float]:
    """Mean loss in nats per token, and in bits per byte of the text."""
    total = float(losses.sum(dtype=np.float64))
    return total / len(losses), total / math.log(2) / text_bytes


def token_losses(
    model: LanguageModel,
    ids: npt.NDArray[np.int64],
    *,
    context: int,
    stride: int | None = None,
    inference: Inference | None = None,
    batch_tokens: int = 2**14,
    on_tokens: Callable[[int], None] = lambda tokens: None,
) -> Losses:
    """Loss in nats of every token but the first. After each batch, `on_tokens` receives the number of scored tokens."""
    stride = context if stride is None else stride
    if not 1 <= stride <= context:
        raise RangeError(f"stride must lie between 1 and the context of {context}, got {stride}")
    if len(ids) < 2:
        raise RangeError(f"a text needs at least 2 tokens for one of them to be predicted, got {len(ids)}")
    losses = np.zeros(len(ids) - 1, np.float32)
    width = min(context, len(losses))  # a context may be much longer than the text
    starts = range(0, max(1, len(ids) - 1 - context + stride), stride)
    rows = max(1, batch_tokens // context)
    for first in range(0, len(starts), rows):
        batch = starts[first : first + rows]
        tokens = torch.zeros(len(batch), width, dtype=torch.int64)
        targets = torch.full((len(batch), width), IGNORE)
        for row, start in enumerate(batch):
            end = min(start + context, len(ids) - 1)
            first_scored = start if start == 0 else start + context - stride
            tokens[row, : end - start] = torch.from_numpy(ids[start:end])
            targets[row, first_scored - start : end - start] = torch.from_numpy(ids[first_scored + 1 : end + 1])
        loss = score_targets(model, tokens, targets, inference=inference, chunk=width).loss_BT.numpy()
        for row, start in enumerate(batch):
            scored = (targets[row] != IGNORE).numpy()
            losses[start + np.flatnonzero(scored)] = loss[row][scored]
        on_tokens(min(len(losses), batch[-1] + context))
    return losses
