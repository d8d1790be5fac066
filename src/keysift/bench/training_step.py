"""A training step of a Multiscreen through the kernel, against the same step through the dense definition."""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from keysift.bench.timing import interleave
from keysift.kernels.attend import only
from keysift.kernels.positions import Positions
from keysift.models.language import LanguageModel
from keysift.models.multiscreen import Multiscreen, MultiscreenConfig

VOCABULARY = 257
SEQUENCES_AT_ONCE = 2  # of the dense path: the gradients of eight would hold more than sixteen gigabytes


def build(psi: int) -> LanguageModel:
    config = MultiscreenConfig.psi(psi, vocab_size=VOCABULARY)
    return Multiscreen(config, torch.Generator().manual_seed(0))


def step(
    model: LanguageModel,
    tokens: Tensor,
    backend: str,
    *,
    at_once: int,
    compiled: bool = False,
    positions: Positions | None = None,
) -> Callable[[], None]:
    """Forward, backward and AdamW over all of `tokens`, `at_once` sequences at a time."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    logits = torch.compile(model) if compiled else model

    def run() -> None:
        with only(backend):
            for start in range(0, tokens.shape[0], at_once):
                part = tokens[start : start + at_once]
                loss = F.cross_entropy(
                    logits(part[:, :-1], positions=positions).flatten(0, 1), part[:, 1:].flatten(), reduction="sum"
                )
                torch.autograd.backward(loss / tokens[:, 1:].numel())
            optimizer.step()
            optimizer.zero_grad()

    return run


def time_steps(*, psi: int, batch: int, tokens: int, rounds: int, compiled: bool) -> dict[str, list[float]]:
    """Seconds of a step: "kernel" (eager), "dense, eager" and, if asked for, "dense, compiled"."""
    model = build(psi)
    text = torch.randint(VOCABULARY, (batch, tokens + 1), generator=torch.Generator().manual_seed(0))
    runs = {
        "kernel": step(model, text, "screening_cpu", at_once=batch),
        "dense, eager": step(model, text, "dense", at_once=SEQUENCES_AT_ONCE),
    }
    if compiled:
        runs["dense, compiled"] = step(model, text, "dense", at_once=SEQUENCES_AT_ONCE, compiled=True)
    return interleave(runs, rounds)


def time_packing(*, psi: int, batch: int, tokens: int, documents: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of a step through the kernel: rows that are one document each, and rows of several of equal length."""
    model = build(psi)
    text = torch.randint(VOCABULARY, (batch, tokens + 1), generator=torch.Generator().manual_seed(0))
    each, rest = divmod(tokens, documents)
    packed = Positions.packed([[each + 1] * rest + [each] * (documents - rest)] * batch)
    runs = {
        "one document": step(model, text, "screening_cpu", at_once=batch),
        f"{documents} documents": step(model, text, "screening_cpu", at_once=batch, positions=packed),
    }
    return interleave(runs, rounds)
