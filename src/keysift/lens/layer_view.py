"""The attention of one layer over a batch of texts, computed one block of queries at a time.

A layer has H x T x S weights. At most `CELLS` of them are in memory at once, for any text length.

Letters: B texts, H heads, T queries of a block, S keys, K key width, V value width.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from keysift.kernels.call import Call, slice_pairs
from keysift.kernels.eager import dense
from keysift.mechanisms.rules import Visible
from keysift.mechanisms.spec import Mechanism, Per

CELLS = 2**22  # scores of a block: 16 MB in fp32
_QUERY = (Per.QUERY, Per.QUERY_CHANNEL)

# Weights of some rows of a block (the second argument) if only the keys in a mask, H T S, are visible.
Weigh = Callable[[Tensor, Tensor | slice], Tensor]


@dataclass(frozen=True)
class Block:
    """Some queries of one text and all keys visible to any of them. Positions count from the text's first token."""

    layer: int
    text: int
    at_T: Tensor  # positions of the queries
    scores_HTS: Tensor
    weights_HTS: Tensor
    visible_HTS: Tensor
    values_HSV: Tensor
    all_values_HSV: Tensor  # of the whole text, including keys that are not visible here
    weigh: Weigh

    @property
    def first(self) -> int:
        """Position of the first query."""
        return int(self.at_T[0])

    def reweigh(self, keep_HTS: Tensor) -> Tensor:
        """The weights if, of the visible keys, only those in the mask are visible."""
        return self.weigh(keep_HTS, slice(None))

    def select(self, rows: Tensor) -> "Block":
        """The block of these queries only, by index in this block."""
        weigh = self.weigh
        return replace(
            self,
            at_T=self.at_T[rows],
            scores_HTS=self.scores_HTS[:, rows],
            weights_HTS=self.weights_HTS[:, rows],
            visible_HTS=self.visible_HTS[:, rows],
            weigh=lambda keep_HTS, some: weigh(keep_HTS, rows[some]),
        )

    @cached_property
    def n_HT(self) -> Tensor:
        """Number of visible keys of each query."""
        return self.visible_HTS.sum(-1)

    @cached_property
    def magnitude_HTS(self) -> Tensor:
        return self.weights_HTS.abs()

    @cached_property
    def brightest_HT(self) -> tuple[Tensor, Tensor]:
        """The largest weight in magnitude, the first key excluded, and the key that has it."""
        weight, key = self.magnitude_HTS[..., 1:].max(-1)
        return weight, key + 1


NewWeights = Callable[[Block], Tensor]  # weights to use in place of those of a block, H T S


@dataclass(frozen=True)
class LayerView:
    """The inputs of one attention layer. `padding` is the number of padding tokens on the left of each text."""

    layer: int
    call: Call
    padding: tuple[int, ...]
    softcap: float | None = None

    @property
    def mechanism(self) -> Mechanism:
        return self.call.mechanism

    @property
    def heads(self) -> int:
        return self.call.heads

    @cached_property
    def _prepared(self) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        return dense.prepare(self.call)

    def apply_softcap(self, x: Tensor) -> Tensor:
        """Soft-capped scores, if the model has a soft cap."""
        return x if self.softcap is None else self.softcap * torch.tanh(x / self.softcap)

    def blocks(self, *, cells: int = CELLS, every: int = 1) -> Iterator[Block]:
        """The blocks of every text; `every` takes each n-th query only."""
        for text in range(len(self.padding)):
            yield from self.text_blocks(text, cells=cells, every=every)

    def text_blocks(self, text: int, *, cells: int = CELLS, every: int = 1) -> Iterator[Block]:
        """The blocks of one text, in order."""
        _, _, v, _ = self._prepared
        begin, end = self.padding[text], self.call.q.shape[2]
        size = every * max(1, cells // (self.heads * (end - begin)))
        for start in range(begin, end, size):
            queries = slice(start, min(start + size, end), every)
            scores, visible, weigh = self._rows(text, queries, slice(begin, end))
            yield Block(
                layer=self.layer,
                text=text,
                at_T=torch.arange(start - begin, queries.stop - begin, every),
                scores_HTS=scores,
                weights_HTS=weigh(visible, slice(None)),
                visible_HTS=visible,
                values_HSV=v[text, :, begin : begin + scores.shape[-1]],
                all_values_HSV=v[text, :, begin:end],
                weigh=weigh,
            )

    def _rows(self, text: int, queries: slice, keys: slice) -> tuple[Tensor, Tensor, Weigh]:
        """Scores (of the first map) and visible keys of some queries, H T S, and the function that weighs them."""
        call = self.call
        q, k, _, scalars = self._prepared
        row = slice(text, text + 1)
        whole = call.visible(queries, keys)
        keep = _of_text(whole.keep_BHTS, row)
        # Drop keys after the last visible one. The first two keys and the queries' own keys always stay.
        visible_S = keep.flatten(0, -2).any(0)
        last = int((visible_S * torch.arange(len(visible_S))).amax())
        keys = slice(keys.start, min(max(keys.start + max(2, last + 1), queries.stop), keys.stop))
        keep, distance = (x[..., : keys.stop - keys.start] for x in (keep, _of_text(whole.distance_BHTS, row)))
        x = self.apply_softcap(call.scale * (q[row, :, queries] @ k[row, :, keys].mT))
        bias = None if call.bias is None else slice_pairs(_of_text(call.bias, row), queries, keys)
        both = x.view(1, self.heads, call.mechanism.maps, *x.shape[2:]).unbind(2)
        maps = tuple(call.add_biases(each, Visible(keep, distance), bias) for each in both)
        visible_HTS = keep.expand_as(maps[0])[0]
        per = {scalar.name: scalar.per for scalar in call.mechanism.scalars}
        own = {name: _scalar(scalars[name], kind, row, queries, keys) for name, kind in per.items()}

        def weigh(keep_HTS: Tensor, rows: Tensor | slice) -> Tensor:
            visible = Visible((keep_HTS & visible_HTS[:, rows])[None], distance[..., rows, :])
            some = {name: value[:, :, rows] if per[name] in _QUERY else value for name, value in own.items()}
            return dense.weigh(call.mechanism, tuple(each[:, :, rows] for each in maps), visible, some)[0]

        return maps[0][0], visible_HTS, weigh

    def last_query_and_keys(self, text: int) -> tuple[Tensor, Tensor]:
        """The last query of a text, H K, and all its keys, H S K, as their products give the scores."""
        q, k, _, _ = self._prepared
        return self.call.scale * q[text, :, -1], k[text, :, self.padding[text] :]

    def output(self, new_weights: NewWeights) -> Tensor:
        """Output of the layer, B H T V, with the weights of every block replaced."""
        call = self.call
        _, _, v, scalars = self._prepared
        out = v.new_zeros(v.shape[0], self.heads, call.q.shape[2], v.shape[3])
        for block in self.blocks():
            start = self.padding[block.text] + block.first
            end = start + block.scores_HTS.shape[1]
            out[block.text, :, start:end] = new_weights(block) @ block.values_HSV
        return dense.finish(call, out, scalars).to(call.v.dtype)


def _of_text(tensor: Tensor, row: slice) -> Tensor:
    return tensor[row] if tensor.ndim == 4 and tensor.shape[0] > 1 else tensor


def _scalar(value: Tensor, per: Per, row: slice, queries: slice, keys: slice) -> Tensor:
    if not per.projected:
        return value
    return value[row, :, queries] if per in _QUERY else value[row, :, keys]
