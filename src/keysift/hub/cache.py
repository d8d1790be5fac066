"""keysift's key-value cache as a transformers Cache, so that `generate` can use it.

keysift holds the keys and values: a ring buffer per tile, as long as the tile's window (nn/layer_cache.py), so memory
stops growing once every window is full. transformers counts columns including padding; keysift counts the real tokens
of each row. This class keeps both counts.

Letters: B batch, T tokens.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from keysift.core.errors import UnsupportedError
from keysift.models.language_model import LanguageModel
from keysift.nn import cache as ours
from keysift.nn.inference import Inference
from keysift.nn.layer_cache import LayerCache


class WindowLayer(CacheLayerMixin):  # type: ignore[misc]
    """The interface of one layer. Only keysift's layers write to it, and it changes with the whole cache."""

    is_croppable = True

    def __init__(self, parent: "WindowCache", store: LayerCache) -> None:
        super().__init__()
        self.parent = parent
        self.store = store

    @property
    def batch_size(self) -> int:
        return self.parent.past.batch

    @property
    def nbytes(self) -> int:
        return self.store.nbytes

    def get_seq_length(self) -> int:
        return self.parent.columns

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.parent.columns + query_length, 0

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # the name in transformers 5.5

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise UnsupportedError(_FOREIGN)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise UnsupportedError(_FOREIGN)

    def offload(self) -> None:
        raise UnsupportedError(
            "a WindowCache cannot be offloaded, it stays on the device of its model; remove the offloading option"
        )


_FOREIGN = "only the layers of its keysift model write to a WindowCache; use a DynamicCache for other models"


class WindowCache(Cache):  # type: ignore[misc]
    """The cache of a keysift model. The first call sets the number of rows.

    `spare` extra entries per window allow `crop` to remove that many tokens, as assisted decoding requires.
    """

    def __init__(self, model: LanguageModel, *, spare: int = 0, inference: Inference | None = None) -> None:
        self.past: ours.Cache = model.cache(1, spare=spare, inference=inference)
        self.columns = 0
        # First column and mask of real tokens, for each call with padding. All other columns are real in every row.
        self._padded: list[tuple[int, Tensor]] = []
        super().__init__(layers=[WindowLayer(self, store) for store in self.past.layers])

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values; constant once every finite window is full."""
        return self.past.nbytes

    def rows(self, batch: int) -> ours.Cache:
        """keysift's cache, for this number of rows; an empty cache accepts any number."""
        if self.columns == 0 and batch != self.past.batch:
            self.past.select(torch.zeros(batch, dtype=torch.int64))
        return self.past

    def count(self, tokens: int, keep_BT: Tensor | None) -> None:
        """Count the columns of a finished call."""
        if keep_BT is not None:
            self._padded.append((self.columns, keep_BT))
        self.columns += tokens

    def real_columns(self) -> Tensor:
        """Boolean B by columns: False for padding."""
        real_BC = torch.ones(self.past.batch, self.columns, dtype=torch.bool)
        for first, keep_BT in self._padded:
            real_BC[:, first : first + keep_BT.shape[1]] = keep_BT
        return real_BC

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.columns

    def reset(self) -> None:
        self.past.crop(torch.tensor(self.past.lengths))
        self.columns, self._padded = 0, []

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        if indices.dtype == torch.bool:
            indices = indices.nonzero()[:, 0]
        indices = indices.long()
        self.past.select(indices)
        self._padded = [(first, keep_BT[indices.to(keep_BT.device)]) for first, keep_BT in self._padded]

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.batch_select_indices(torch.arange(self.past.batch).repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last -tokens_to_remove columns; a positive number is the length to keep (transformers 5.5)."""
        removed = -tokens_to_remove if tokens_to_remove <= 0 else max(0, self.columns - tokens_to_remove)
        if removed == 0:
            return
        left = max(0, self.columns - removed)
        removed_tokens = torch.full((self.past.batch,), self.columns - left)
        for first, keep_BT in self._padded:
            removed_tokens -= (~keep_BT[:, max(0, left - first) :]).sum(1).cpu()
        self.past.crop(removed_tokens)
        self.columns = left
        self._padded = [(first, keep[:, : left - first]) for first, keep in self._padded if first < left]
