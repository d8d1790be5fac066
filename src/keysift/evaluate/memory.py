"""Memory checks before a long evaluation starts."""

from collections.abc import Iterable

import torch

from keysift.core.errors import RangeError
from keysift.core.memory import require
from keysift.evaluate.scoring import CHUNK
from keysift.models.language_model import LanguageModel
from keysift.nn.inference import Inference

BATCH_TOKENS = 2**16  # tokens of one batch, unless a single row is longer


@torch.no_grad()
def check_memory(
    model: LanguageModel, lengths: Iterable[int], inferences: Iterable[Inference] = (Inference(),)
) -> None:
    """Raise if the caches of the longest batch and the activations of one chunk do not fit in memory.

    Also raises if the model does not support one of the inference settings.
    """
    lengths = list(lengths)
    if min(lengths, default=0) < 1:
        raise RangeError(f"lengths must be at least 1 token, got {min(lengths, default='none')}")
    longest = max(lengths)
    rows = max(1, BATCH_TOKENS // longest)
    activations = 4 * 8 * min(CHUNK, longest) * model.config.width
    for inference in inferences:
        cache = model.cache(1, inference=inference)
        model.hidden(torch.zeros(1, 1, dtype=torch.int64), cache=cache)
        cached = sum(
            sum(min(limit, longest) for limit in layer.limits) * sum(x.shape[-1] for x in layer.entries.values())
            for layer in cache.layers
        )
        require(rows * (4 * cached + activations), f"a context of {longest:,} tokens", "use shorter lengths")


def check_map_memory(model: LanguageModel, tokens: int) -> None:
    """Raise if the attention weights of one layer, tokens x tokens per head, do not fit in memory."""
    heads = max(scalars.sizes["H"] for scalars in model.layer_scalars())
    # Weights, scores, and the comparison that counts nonzero weights.
    size = 3 * 4 * heads * tokens**2
    require(size, f"a map of {tokens:,} x {tokens:,} tokens for every head", "read fewer with --tokens")
