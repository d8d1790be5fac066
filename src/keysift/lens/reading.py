"""One layer's attention over a batch of texts, looked at a block of queries at a time.

A layer's weights are H x T x S numbers. Here at most `CELLS` of them exist at once, whatever the length.

Letters: B texts, H heads, T queries of a block, S keys, K key width, V value width.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from keysift.kernels import dense
from keysift.kernels.call import Call, part
from keysift.mechanisms.rules import Visible
from keysift.mechanisms.spec import Mechanism, Per

CELLS = 2**22  # scores of a block: 16 MB in fp32


@dataclass(frozen=True)
class Block:
    """Some queries of one text against the keys of that text. Positions count from the text's first token."""

    layer: int
    text: int
    first: int  # position of the first query
    scores_HTS: Tensor
    weights_HTS: Tensor
    seen_HTS: Tensor
    values_HSV: Tensor
    reweigh: Callable[[Tensor], Tensor]  # the weights if only these of the visible keys took part, boolean H T S

    @property
    def at_T(self) -> Tensor:
        return torch.arange(self.first, self.first + self.scores_HTS.shape[1])


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

    def blocks(self, *, cells: int = CELLS) -> Iterator[Block]:
        for text in range(len(self.padding)):
            yield from self.blocks_of(text, cells=cells)

    def blocks_of(self, text: int, *, cells: int = CELLS) -> Iterator[Block]:
        """Every query of one text, in order."""
        _, _, v, _ = self._prepared
        begin, end = self.padding[text], self.call.q.shape[2]
        size = max(1, cells // (self.heads * (end - begin)))
        for start in range(begin, end, size):
            queries = slice(start, min(start + size, end))
            scores, seen, reweigh = self._rows(text, queries, slice(begin, end))
            yield Block(
                layer=self.layer,
                text=text,
                first=start - begin,
                scores_HTS=scores,
                weights_HTS=reweigh(seen),
                seen_HTS=seen,
                values_HSV=v[text, :, begin:],
                reweigh=reweigh,
            )

    def _rows(self, text: int, queries: slice, keys: slice) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
        """Scores (of the first map) and visibility of some queries, H T S, and what weighs them."""
        call = self.call
        q, k, _, scalars = self._prepared
        row = slice(text, text + 1)
        x = call.scale * (q[row, :, queries] @ k[row, :, keys].mT)
        x = self.capped(x)
        if call.bias is not None:
            bias = part(_of_text(call.bias, row), queries, keys)
            x = x + bias.repeat_interleave(call.mechanism.maps, dim=1).to(x.dtype)
        maps = x.view(1, self.heads, call.mechanism.maps, *x.shape[2:]).unbind(2)
        whole = call.visible(queries, keys)
        seen_HTS = _of_text(whole.keep_BHTS, row).expand_as(maps[0])[0]
        distance = _of_text(whole.distance_BHTS, row)
        own = {s.name: _scalar(scalars[s.name], s.per, row, queries, keys) for s in call.mechanism.scalars}

        def reweigh(keep_HTS: Tensor) -> Tensor:
            return dense.weigh(call.mechanism, maps, Visible((keep_HTS & seen_HTS)[None], distance), own)[0]

        return maps[0][0], seen_HTS, reweigh

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
    return value[row, :, queries] if per in (Per.QUERY, Per.QUERY_CHANNEL) else value[row, :, keys]
