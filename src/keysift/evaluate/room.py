"""Whether a text of some length can be read at all: an estimate before work starts."""

from collections.abc import Iterable

import torch

from keysift.core.errors import RangeError
from keysift.core.memory import need
from keysift.evaluate.reading import CHUNK
from keysift.models.language import LanguageModel
from keysift.nn.inference import Inference

BATCH_TOKENS = 2**16  # what a grid reads at once, where rows are short


@torch.no_grad()
def need_room(model: LanguageModel, lengths: Iterable[int], inferences: Iterable[Inference] = (Inference(),)) -> None:
    """Refuses what does not fit in memory: keys and values of every layer, and the activations of a chunk. Also refuses
    inference choices that the model cannot follow."""
    lengths = list(lengths)
    if min(lengths, default=0) < 1:
        raise RangeError(f"lengths must be at least 1 token, got {min(lengths, default='none')}")
    longest = max(lengths)
    rows = max(1, BATCH_TOKENS // longest)
    working = 4 * 8 * min(CHUNK, longest) * model.config.width
    for inference in inferences:
        cache = model.cache(1, inference=inference)
        model.hidden(torch.zeros(1, 1, dtype=torch.int64), cache=cache)
        held = sum(
            sum(min(limit, longest) for limit in store.limits) * sum(x.shape[-1] for x in store.entries.values())
            for store in cache.stores
        )
        need(rows * (4 * held + working), f"a context of {longest:,} tokens", "ask for shorter lengths")


def need_maps(model: LanguageModel, tokens: int) -> None:
    """Refuses a text whose weights, tokens x tokens of every head of a layer, do not fit in memory."""
    heads = max(scalars.sizes["H"] for scalars in model._scalars())
    # The weights, what they are made from, and what is counted in them.
    need(
        3 * 4 * heads * tokens**2, f"a map of {tokens:,} x {tokens:,} tokens for every head", "read fewer with --tokens"
    )
