"""The loss of a batch, and of what is held out; the accuracy where targets are answers."""

from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from keysift.data.batches import IGNORE, Batch


class Processes(Protocol):
    """Those who share the work; train's World is one."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    def sum(self, *numbers: float) -> list[float]: ...


class Sums(NamedTuple):
    """Over all targets of a batch; the caller divides by their number, because only the caller knows the whole batch.

    loss    nats
    right   answers predicted, None where targets are no answers
    """

    loss: Tensor
    right: Tensor | None


class Found(NamedTuple):
    """For each target: nats, and the share of answers predicted."""

    loss: float
    accuracy: float | None


class HeldOut(Protocol):
    """Batches by number that are the same each time."""

    @property
    def batch_size(self) -> int: ...
    @property
    def sequences(self) -> int: ...
    def batch(self, step: int) -> Batch: ...


def summed(model: torch.nn.Module, batch: Batch) -> Sums:
    logits_BTN = model(batch.inputs, positions=batch.positions)
    logits, targets = logits_BTN.float().flatten(0, 1), batch.targets.flatten()
    loss = F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum")
    return Sums(loss, (logits.detach().argmax(-1) == targets).sum() if batch.answers else None)


def summed_loss(model: torch.nn.Module, batch: Batch) -> Tensor:
    return summed(model, batch).loss


def targets(batch: Batch) -> int:
    return int((batch.targets != IGNORE).sum())


@torch.no_grad()
def validate(
    model: torch.nn.Module,
    batches: HeldOut,
    sequences: int,
    *,
    precision: AbstractContextManager[Any],
    processes: Processes,
) -> Found:
    """The sequences are the same each time, divided among the processes."""
    calls = -(-min(sequences, batches.sequences) // batches.batch_size)
    total = right = answers = count = 0.0
    model.eval()
    for start in range(0, calls, processes.size):
        # Every process makes every call: sharded weights are gathered by all or by none.
        number = start + processes.rank
        batch = batches.batch(number).to(processes.device)
        with precision:
            found = summed(model, batch)
        if number < calls:
            total, count = total + float(found.loss), count + targets(batch)
            if found.right is not None:
                right, answers = right + float(found.right), answers + targets(batch)
    model.train()
    total, right, answers, count = processes.sum(total, right, answers, count)
    return Found(total / count, right / answers if answers else None)
