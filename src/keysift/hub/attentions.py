"""Attention weights as transformers returns them: one tensor per layer, with a column for every token and padding.

Letters: B batch, H heads, T queries, S entries of the cache in view, C columns of the text so far.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from keysift.hub.cache import WindowCache
from keysift.models.language_model import LanguageModel
from keysift.nn.cache import AttentionContext
from keysift.nn.tap import match_addresses, taps


@contextmanager
def collect_weights(model: LanguageModel, wanted: bool) -> Iterator[list[Tensor]]:
    """The weights B H T S of each layer that runs inside the `with` block, with their gradients."""
    weights: list[Tensor] = []
    with ExitStack() as listening:
        if wanted:
            all_taps = taps(model)
            for address in match_addresses("layers.*.relevance", all_taps):
                listening.enter_context(all_taps[address].listening(weights.append))
        yield weights


def weights_by_column(weights_BHTS: Tensor, cache: WindowCache, layer: int, context: AttentionContext) -> Tensor:
    """Weights B H T C of a call with a cache. A cache holds no padding and only the entries inside the windows."""
    assert context.update is not None
    layer_cache = cache.past.layers[layer]
    first = layer_cache.first_in_view(context.update, weights_BHTS.shape[2])
    real_BC = cache.real_columns().to(weights_BHTS.device)
    entries, columns = weights_BHTS.shape[3], real_BC.shape[1]
    if entries == columns and not any(first) and bool(real_BC.all()):
        return weights_BHTS
    token_BC = real_BC.cumsum(1) - 1
    entry_BC = token_BC - torch.tensor(first, device=weights_BHTS.device)[:, None]
    entry_BC = torch.where(token_BC < layer_cache.kept, token_BC, entry_BC)
    beside_BC = (token_BC >= layer_cache.kept) & (entry_BC < layer_cache.kept)  # left the window, not kept
    held_BC = real_BC & ~beside_BC & (entry_BC >= 0) & (entry_BC < entries)
    index_BHTC = entry_BC.clamp(0, entries - 1)[:, None, None].expand(*weights_BHTS.shape[:3], columns)
    return torch.where(held_BC[:, None, None], weights_BHTS.gather(3, index_BHTC), 0)
