"""A training step of a whole model, to be timed: forward, backward and AdamW."""

import copy
from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from keysift.bench.model_cases import VOCABULARY, multiscreen
from keysift.bench.timing import interleave
from keysift.core.memory import keep_freed_memory
from keysift.kernels.attend import force_backend
from keysift.kernels.positions import Positions
from keysift.models.language_model import LanguageModel

SEQUENCES_AT_ONCE = 2  # of the dense path; gradients of eight sequences need more than 16 GB


def random_tokens(batch: int, tokens: int) -> Tensor:
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
    """Return a function that runs one step over all of `tokens`, `at_once` sequences at a time.

    Without `backend`, `attend` chooses it. The model is copied, so that several cases start from the same weights.
    `positions` are shared by all rows.
    """
    model = copy.deepcopy(model).train()
    keep_freed_memory()  # as the training loop does
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    logits = torch.compile(model) if compiled else model
    each = at_once or len(tokens)

    def run() -> None:
        with force_backend(backend) if backend else nullcontext():
            for part in torch.split(tokens, each):
                output = logits(part[:, :-1], positions=positions) if positions else logits(part[:, :-1])
                loss = F.cross_entropy(output.flatten(0, 1), part[:, 1:].flatten(), reduction="sum")
                torch.autograd.backward(loss / tokens[:, 1:].numel())
            optimizer.step()
            optimizer.zero_grad()

    return run


def time_steps(*, psi: int, batch: int, tokens: int, rounds: int, compiled: bool) -> dict[str, list[float]]:
    """Seconds of a Multiscreen's step: "kernel", "dense, eager" and, if `compiled`, "dense, compiled"."""
    model, text = multiscreen(psi), random_tokens(batch, tokens + 1)
    runs = {
        "kernel": step(model, text, backend="screening_cpu"),
        "dense, eager": step(model, text, backend="dense", at_once=SEQUENCES_AT_ONCE),
    }
    if compiled:
        runs["dense, compiled"] = step(model, text, backend="dense", at_once=SEQUENCES_AT_ONCE, compiled=True)
    return interleave(runs, rounds)
