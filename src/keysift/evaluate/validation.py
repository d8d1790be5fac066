"""The loss of a batch, and of held-out text."""

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from keysift.data.batches import IGNORE, Batch, Batches


class Processes(Protocol):
    """Those who share the work; train's World is one."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    def sum(self, *numbers: float) -> list[float]: ...


def summed_loss(model: torch.nn.Module, batch: Batch) -> Tensor:
    """Nats over all targets; the caller divides by their number, because only the caller knows the whole batch."""
    logits_BTN = model(batch.inputs, positions=batch.positions)
    return F.cross_entropy(
        logits_BTN.float().flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE, reduction="sum"
    )


def targets(batch: Batch) -> int:
    return int((batch.targets != IGNORE).sum())


@torch.no_grad()
def validation_loss(
    model: torch.nn.Module,
    batches: Batches,
    sequences: int,
    *,
    precision: AbstractContextManager[Any],
    processes: Processes,
) -> float:
    """Nats for each token. The sequences are the same each time, divided among the processes."""
    calls = -(-min(sequences, batches.sequences) // batches.batch_size)
    total = count = 0.0
    model.eval()
    for start in range(0, calls, processes.size):
        # Every process makes every call: sharded weights are gathered by all or by none.
        number = start + processes.rank
        batch = batches.batch(number).to(processes.device)
        with precision:
            loss = float(summed_loss(model, batch))
        if number < calls:
            total, count = total + loss, count + targets(batch)
    model.train()
    total, count = processes.sum(total, count)
    return total / count
