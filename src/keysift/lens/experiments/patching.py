"""Activation patching: run one prompt with single values of another, and measure how the answer changes.

    found = patch(model, "A red ball. The ball is", "A blue ball. The ball is", answer=" red", instead=" blue")
    found.show()

A value is the residual stream (or another tap B T D) of one layer at one position, or the attention output of one head
(taps B H T V) at all positions.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from keysift.core.errors import DataError
from keysift.lens.model import LensModel, Progress, encode_text, ignore_layer, no_progress
from keysift.records.patching import PatchMap

BATCH = 16  # largest number of patched copies of the target in one run
LOGITS = 2**26  # largest number of logits in one run
Changes = Mapping[str, Callable[[Tensor], Tensor]]


class PatchableModel(LensModel, Protocol):
    """A model whose values can be read and replaced by address (nn/tap.py)."""

    def trace(self, *patterns: str) -> AbstractContextManager[dict[str, Tensor]]: ...

    def edit(self, changes: Changes) -> AbstractContextManager[None]: ...


def patch(
    model: PatchableModel,
    source: str,
    target: str,
    *,
    answer: str,
    instead: str | None = None,
    at: str = "layers.*.stream",
    progress: Progress = no_progress,
) -> PatchMap:
    """Write values of `source` into a run of `target` and measure the answer.

    answer   the continuation of `source`; its first token is scored at the last position
    instead  the continuation of `target`; the measure is then the difference of both logits, else the log-probability
    at       addresses to patch, with * for any text; TransformerLens names work
    """
    prompts = [encode_text(model, name, text, None) for name, text in (("source", source), ("target", target))]
    if len(prompts[0]) != len(prompts[1]):
        raise DataError(
            f"both prompts must have the same number of tokens, source has {len(prompts[0])} and target "
            f"{len(prompts[1])}; choose words with equally many tokens"
        )
    score = _measure(model, source, answer, target, instead)
    with model.trace(at) as seen:
        source_value = score(model.run([prompts[0]], ignore_layer)[0])
    target_value = score(model.run([prompts[1]], ignore_layer)[0])
    if abs(source_value - target_value) < 1e-6:
        raise DataError(f"both prompts give the answer {answer!r} the same score; choose another answer or prompt")
    kinds = {(value.ndim, value.shape[1]) for value in seen.values()}
    if len(kinds) > 1:
        raise DataError(f"{at!r} matches values by position and by head, or different numbers of heads; name one kind")
    by_head, count = kinds.pop()[0] == 4, next(iter(seen.values())).shape[1]
    effects: list[tuple[float, ...]] = []
    for done, (address, value) in enumerate(seen.items(), 1):
        values = _patched(model, prompts[1], address, value, score)
        effects.append(tuple((patched - target_value) / (source_value - target_value) for patched in values))
        progress("patches", done, len(seen))
    columns = [f"head {i}" for i in range(count)] if by_head else model.pieces(prompts[1])
    what = f"log-probability of {answer!r}" if instead is None else f"logit of {answer!r} minus logit of {instead!r}"
    return PatchMap(
        model=model.info.name,
        source=source,
        target=target,
        measure=what,
        source_value=source_value,
        target_value=target_value,
        rows=tuple(seen),
        columns=tuple(columns),
        effects=tuple(effects),
    )


def _patched(
    model: PatchableModel,
    ids: Sequence[int],
    address: str,
    value: Tensor,
    score: Callable[[Tensor], float],
) -> list[float]:
    """The measure with each position or head of one value replaced by that of the source."""
    count = value.shape[1]
    batch = max(1, min(BATCH, LOGITS // (len(ids) * model.info.vocabulary)))
    values: list[float] = []
    for start in range(0, count, batch):
        places = range(start, min(start + batch, count))

        def write(x: Tensor, places: Sequence[int] = places) -> Tensor:
            x = x.clone()
            for row, place in enumerate(places):
                x[row, place] = value[0, place]
            return x

        with model.edit({address: write}):
            values += [score(logits) for logits in model.run([ids] * len(places), ignore_layer)]
    return values


def _measure(model: LensModel, source: str, answer: str, target: str, instead: str | None) -> Callable[[Tensor], float]:
    """A function from logits T x vocabulary to the measure at the last position."""
    wanted = _first_token(model, source, answer)
    other = None if instead is None else _first_token(model, target, instead)
    if wanted == other:
        raise DataError(f"{answer!r} and {instead!r} begin with the same token; choose answers that differ in it")

    def score(logits: Tensor) -> float:
        last = torch.log_softmax(logits[-1].double(), dim=-1)
        return float(last[wanted] - (0.0 if other is None else last[other]))

    return score


def _first_token(model: LensModel, prompt: str, continuation: str) -> int:
    ids, longer = model.encode(prompt), model.encode(prompt + continuation)
    if longer[: len(ids)] != ids or len(longer) == len(ids):
        raise DataError(
            f"{continuation!r} does not begin with a token of its own after the prompt; "
            f"start it with a space, and end the prompt without one"
        )
    return longer[len(ids)]
