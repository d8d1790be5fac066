"""How well a model predicts a text: nats for each token, bits for each byte, whatever the length of the text.

A text longer than the context is read in windows that overlap: each token is scored once, with at least
`context - stride` tokens before it (the first window aside).
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from keysift.core.errors import RangeError
from keysift.data.batches import IGNORE
from keysift.evaluate.reading import read
from keysift.models.language import LanguageModel
from keysift.nn.inference import Inference

Losses = npt.NDArray[np.float32]


def mean_and_bits(losses: Losses, text_bytes: int) -> tuple[float, float]:
    """Nats for each token, and bits for each byte of the text."""
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
    """Nats of every token but the first. `on_tokens` is told how many were scored, now and then."""
    stride = context if stride is None else stride
    if not 1 <= stride <= context:
        raise RangeError(f"stride must lie between 1 and the context of {context}, got {stride}")
    if len(ids) < 2:
        raise RangeError(f"a text needs at least 2 tokens for one of them to be predicted, got {len(ids)}")
    found = np.zeros(len(ids) - 1, np.float32)
    starts = range(0, max(1, len(ids) - 1 - context + stride), stride)
    rows = max(1, batch_tokens // context)
    for first in range(0, len(starts), rows):
        batch = starts[first : first + rows]
        tokens = torch.zeros(len(batch), context, dtype=torch.int64)
        targets = torch.full((len(batch), context), IGNORE)
        for row, start in enumerate(batch):
            end = min(start + context, len(ids) - 1)
            fresh = start if start == 0 else start + context - stride
            tokens[row, : end - start] = torch.from_numpy(ids[start:end])
            targets[row, fresh - start : end - start] = torch.from_numpy(ids[fresh + 1 : end + 1])
        loss = read(model, tokens, targets, inference=inference, chunk=context).loss_BT.numpy()
        for row, start in enumerate(batch):
            asked = (targets[row] != IGNORE).numpy()
            found[start + np.flatnonzero(asked)] = loss[row][asked]
        on_tokens(min(len(found), batch[-1] + context))
    return found
