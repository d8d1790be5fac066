"""keysift's cache of the past as a Cache of transformers, so that `generate` can use it.

What a layer remembers is keysift's: for each tile a ring as long as the tile looks back (nn/store.py), so memory stops
growing once every window is full. transformers counts columns, padding included; keysift counts each row's real tokens.
This class keeps both counts.

Letters: B batch, T tokens.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from keysift.core.errors import UnsupportedError
from keysift.models.language import LanguageModel
from keysift.nn import cache as ours
from keysift.nn.inference import Inference
from keysift.nn.store import Store


class WindowLayer(CacheLayerMixin):  # type: ignore[misc]
    """What transformers asks of one layer. keysift's layers alone write it, and it changes with the whole cache."""

    is_croppable = True

    def __init__(self, whole: "WindowCache", store: Store) -> None:
        super().__init__()
        self.whole = whole
        self.store = store

    @property
    def batch_size(self) -> int:
        return self.whole.past.batch

    @property
    def nbytes(self) -> int:
        return self.store.nbytes

    def get_seq_length(self) -> int:
        return self.whole.columns

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.whole.columns + query_length, 0

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its name in transformers 5.5

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise UnsupportedError(_FOREIGN)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise UnsupportedError(_FOREIGN)

    def offload(self) -> None:
        raise UnsupportedError("a window cache stays where its model is; leave offloading out")


_FOREIGN = (
    "a window cache is written by the layers of the keysift model it was made for; make a DynamicCache for other models"
)


class WindowCache(Cache):  # type: ignore[misc]
    """The past of a keysift model. The number of rows is that of the first tokens, whatever `generate` makes of them.

    `spare` more entries per window let `crop` go that far back, which assisted decoding needs.
    """

    def __init__(self, model: LanguageModel, *, spare: int = 0, inference: Inference | None = None) -> None:
        self.past: ours.Cache = model.cache(1, spare=spare, inference=inference)
        self.columns = 0
        # Calls with padding: their first column and which tokens were real. All other columns are real in every row.
        self._padded: list[tuple[int, Tensor]] = []
        super().__init__(layers=[WindowLayer(self, store) for store in self.past.stores])

    @property
    def nbytes(self) -> int:
        """Bytes held for keys and values; constant once every finite window is full."""
        return self.past.nbytes

    def rows(self, batch: int) -> ours.Cache:
        """keysift's cache, for this many rows; an empty one takes on any number."""
        if self.columns == 0 and batch != self.past.batch:
            self.past.select(torch.zeros(batch, dtype=torch.int64))
        return self.past

    def count(self, tokens: int, keep_BT: Tensor | None) -> None:
        """Note the columns of a finished call."""
        if keep_BT is not None:
            self._padded.append((self.columns, keep_BT))
        self.columns += tokens

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
        """Forget the last -tokens_to_remove columns; a positive number is the length to keep (transformers 5.5)."""
        removed = -tokens_to_remove if tokens_to_remove <= 0 else max(0, self.columns - tokens_to_remove)
        if removed == 0:
            return
        left = max(0, self.columns - removed)
        real = torch.full((self.past.batch,), self.columns - left)
        for first, keep_BT in self._padded:
            real -= (~keep_BT[:, max(0, left - first) :]).sum(1).cpu()
        self.past.crop(real)
        self.columns = left
        self._padded = [(first, keep[:, : left - first]) for first, keep in self._padded if first < left]
