"""A training step of a whole model as a thing to be timed: forward, backward and AdamW."""

import copy
from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from keysift.bench.subjects import VOCABULARY, multiscreen
from keysift.bench.timing import interleave
from keysift.kernels.attend import only
from keysift.kernels.positions import Positions
from keysift.models.language import LanguageModel

SEQUENCES_AT_ONCE = 2  # of the dense path: the gradients of eight would hold more than sixteen gigabytes


def some_text(batch: int, tokens: int) -> Tensor:
    return torch.randint(VOCABULARY, (batch, tokens), generator=torch.Generator().manual_seed(0))


def step(
    model: LanguageModel,
    tokens: Tensor,
    *,
    backend: str | None = None,
    at_once: int | None = None,
    compiled: bool = False,
    positions: Positions | None = None,
) -> Callable[[], None]:
    """One step over all of `tokens`, `at_once` sequences at a time, on the named backend or the one `attend` chooses.

    The model is copied, so that several contestants start from the same weights. `positions` are those of all rows.
    """
    model = copy.deepcopy(model).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    logits = torch.compile(model) if compiled else model
    each = at_once or len(tokens)

    def run() -> None:
        with only(backend) if backend else nullcontext():
            for part in torch.split(tokens, each):
                found = logits(part[:, :-1], positions=positions) if positions else logits(part[:, :-1])
                loss = F.cross_entropy(found.flatten(0, 1), part[:, 1:].flatten(), reduction="sum")
                torch.autograd.backward(loss / tokens[:, 1:].numel())
            optimizer.step()
            optimizer.zero_grad()

    return run


def time_steps(*, psi: int, batch: int, tokens: int, rounds: int, compiled: bool) -> dict[str, list[float]]:
    """Seconds of a Multiscreen's step: "kernel", "dense, eager" and, if asked for, "dense, compiled"."""
    model, text = multiscreen(psi), some_text(batch, tokens + 1)
    runs = {
        "kernel": step(model, text, backend="screening_cpu"),
        "dense, eager": step(model, text, backend="dense", at_once=SEQUENCES_AT_ONCE),
    }
    if compiled:
        runs["dense, compiled"] = step(model, text, backend="dense", at_once=SEQUENCES_AT_ONCE, compiled=True)
    return interleave(runs, rounds)
