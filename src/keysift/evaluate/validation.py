"""Validation loss and accuracy during training, divided among processes."""

from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import torch

from keysift.data.batches import Batch
from keysift.models import losses


class Processes(Protocol):
    """The process group that shares the work, such as train's World."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    def sum(self, *numbers: float) -> list[float]: ...


class ValidationResult(NamedTuple):
    """Mean loss per target in nats, and the accuracy; None if the targets are not answers of a task."""

    loss: float
    accuracy: float | None


class ValidationBatches(Protocol):
    """A fixed list of batches, read by number."""

    @property
    def batch_size(self) -> int: ...
    @property
    def sequences(self) -> int: ...
    def batch(self, step: int) -> Batch: ...


@torch.no_grad()
def validate(
    model: torch.nn.Module,
    batches: ValidationBatches,
    sequences: int,
    *,
    precision: AbstractContextManager[Any],
    processes: Processes,
) -> ValidationResult:
    """Loss and accuracy on the first `sequences` sequences. Leaves the model in training mode."""
    calls = -(-min(sequences, batches.sequences) // batches.batch_size)
    total = correct = answers = count = 0.0
    model.eval()
    for start in range(0, calls, processes.size):
        # Every process makes every call: gathering sharded weights is a collective operation.
        number = start + processes.rank
        batch = batches.batch(number).to(processes.device)
        with precision:
            sums = losses.batch_loss(model, batch)
        if number < calls:
            total, count = total + float(sums.loss), count + losses.count_targets(batch)
            if sums.correct is not None:
                correct, answers = correct + float(sums.correct), answers + losses.count_targets(batch)
    model.train()
    total, correct, answers, count = processes.sum(total, correct, answers, count)
    return ValidationResult(total / count, correct / answers if answers else None)
