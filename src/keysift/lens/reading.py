"""One layer's attention over a batch of texts, looked at a block of queries at a time.

A layer's weights are H x T x S numbers. Here at most `CELLS` of them exist at once, whatever the length.

Letters: B texts, H heads, T queries of a block, S keys, K key width, V value width.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from keysift.kernels import dense
from keysift.kernels.call import Call, part
from keysift.mechanisms.rules import Visible
from keysift.mechanisms.spec import Mechanism, Per

CELLS = 2**22  # scores of a block: 16 MB in fp32
_QUERY = (Per.QUERY, Per.QUERY_CHANNEL)


Weigh = Callable[[Tensor, Tensor | slice], Tensor]


@dataclass(frozen=True)
class Block:
    """Some queries of one text against every key that any of them sees. Positions count from the text's first token."""

    layer: int
    text: int
    at_T: Tensor
    scores_HTS: Tensor
    weights_HTS: Tensor
    seen_HTS: Tensor
    values_HSV: Tensor
    every_value_HSV: Tensor  # of the whole text, keys no query here sees included
    weigh: Weigh  # weights of some rows of the reading's block, if only these of their visible keys took part

    @property
    def first(self) -> int:
        """Position of the first query."""
        return int(self.at_T[0])

    def reweigh(self, keep_HTS: Tensor) -> Tensor:
        """The weights if only these of the visible keys took part."""
        return self.weigh(keep_HTS, slice(None))

    def pick(self, rows: Tensor) -> "Block":
        """Only these queries, named by their place in the block."""
        weigh = self.weigh
        return replace(
            self,
            at_T=self.at_T[rows],
            scores_HTS=self.scores_HTS[:, rows],
            weights_HTS=self.weights_HTS[:, rows],
            seen_HTS=self.seen_HTS[:, rows],
            weigh=lambda keep_HTS, some: weigh(keep_HTS, rows[some]),
        )

    @cached_property
    def n_HT(self) -> Tensor:
        """How many keys each query sees."""
        return self.seen_HTS.sum(-1)

    @cached_property
    def size_HTS(self) -> Tensor:
        return self.weights_HTS.abs()

    @cached_property
    def brightest_HT(self) -> tuple[Tensor, Tensor]:
        """The largest size of a weight, the first key aside, and the key that has it."""
        size, key = self.size_HTS[..., 1:].max(-1)
        return size, key + 1


Change = Callable[[Block], Tensor]


@dataclass(frozen=True)
class Reading:
    """What one layer is about to read. `padding` is the number of tokens on the left that belong to no text."""

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

    def capped(self, x: Tensor) -> Tensor:
        """Scores under the model's soft cap, where it has one."""
        return x if self.softcap is None else self.softcap * torch.tanh(x / self.softcap)

    def blocks(self, *, cells: int = CELLS, every: int = 1) -> Iterator[Block]:
        for text in range(len(self.padding)):
            yield from self.blocks_of(text, cells=cells, every=every)

    def blocks_of(self, text: int, *, cells: int = CELLS, every: int = 1) -> Iterator[Block]:
        """Every query of one text in order, or one out of so many."""
        _, _, v, _ = self._prepared
        begin, end = self.padding[text], self.call.q.shape[2]
        size = every * max(1, cells // (self.heads * (end - begin)))
        for start in range(begin, end, size):
            queries = slice(start, min(start + size, end), every)
            scores, seen, weigh = self._rows(text, queries, slice(begin, end))
            yield Block(
                layer=self.layer,
                text=text,
                at_T=torch.arange(start - begin, queries.stop - begin, every),
                scores_HTS=scores,
                weights_HTS=weigh(seen, slice(None)),
                seen_HTS=seen,
                values_HSV=v[text, :, begin : begin + scores.shape[-1]],
                every_value_HSV=v[text, :, begin:end],
                weigh=weigh,
            )

    def _rows(self, text: int, queries: slice, keys: slice) -> tuple[Tensor, Tensor, Weigh]:
        """Scores (of the first map) and visibility of some queries, H T S, and what weighs them."""
        call = self.call
        q, k, _, scalars = self._prepared
        row = slice(text, text + 1)
        whole = call.visible(queries, keys)
        keep = _of_text(whole.keep_BHTS, row)
        # Keys that no query of the block sees are left out; the first two and the queries' own always stand.
        seen_S = keep.flatten(0, -2).any(0)
        last = int((seen_S * torch.arange(len(seen_S))).amax())
        keys = slice(keys.start, min(max(keys.start + max(2, last + 1), queries.stop), keys.stop))
        keep, distance = (x[..., : keys.stop - keys.start] for x in (keep, _of_text(whole.distance_BHTS, row)))
        x = self.capped(call.scale * (q[row, :, queries] @ k[row, :, keys].mT))
        if call.bias is not None:
            bias = part(_of_text(call.bias, row), queries, keys)
            x = x + bias.repeat_interleave(call.mechanism.maps, dim=1).to(x.dtype)
        maps = x.view(1, self.heads, call.mechanism.maps, *x.shape[2:]).unbind(2)
        seen_HTS = keep.expand_as(maps[0])[0]
        per = {scalar.name: scalar.per for scalar in call.mechanism.scalars}
        own = {name: _scalar(scalars[name], kind, row, queries, keys) for name, kind in per.items()}

        def weigh(keep_HTS: Tensor, rows: Tensor | slice) -> Tensor:
            visible = Visible((keep_HTS & seen_HTS[:, rows])[None], distance[..., rows, :])
            some = {name: value[:, :, rows] if per[name] in _QUERY else value for name, value in own.items()}
            return dense.weigh(call.mechanism, tuple(x[:, :, rows] for x in maps), visible, some)[0]

        return maps[0][0], seen_HTS, weigh

    def output(self, change: Change) -> Tensor:
        """What the layer puts out when the weights of every block are replaced: B H T V."""
        call = self.call
        _, _, v, scalars = self._prepared
        out = v.new_zeros(v.shape[0], self.heads, call.q.shape[2], v.shape[3])
        for block in self.blocks():
            start = self.padding[block.text] + block.first
            end = start + block.scores_HTS.shape[1]
            out[block.text, :, start:end] = change(block) @ block.values_HSV
        return dense.finish(call.mechanism, out, scalars).to(call.v.dtype)


def _of_text(tensor: Tensor, row: slice) -> Tensor:
    return tensor[row] if tensor.ndim == 4 and tensor.shape[0] > 1 else tensor


def _scalar(value: Tensor, per: Per, row: slice, queries: slice, keys: slice) -> Tensor:
    if not per.projected:
        return value
    return value[row, :, queries] if per in _QUERY else value[row, :, keys]
