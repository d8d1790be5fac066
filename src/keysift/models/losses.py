"""The loss of a batch: cross-entropy summed over its targets, and the number of correct predictions."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from keysift.data.batches import IGNORE, Batch


class BatchLoss(NamedTuple):
    """Sums over all targets of a batch. Callers divide by the number of targets of the whole (global) batch.

    loss      nats
    correct   correct predictions; None if the targets are not answers of a task
    """

    loss: Tensor
    correct: Tensor | None


def batch_loss(model: torch.nn.Module, batch: Batch) -> BatchLoss:
    """Cross-entropy of the model's predictions, summed over the targets."""
    logits_BTN = model(batch.inputs, positions=batch.positions)
    logits, targets = logits_BTN.float().flatten(0, 1), batch.targets.flatten()
    loss = F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum")
    return BatchLoss(loss, (logits.detach().argmax(-1) == targets).sum() if batch.answers else None)


def count_targets(batch: Batch) -> int:
    """Number of targets that are not ignored."""
    return int((batch.targets != IGNORE).sum())
