"""What one layer remembers of past keys: for each head a ring as long as the head looks back, all rings in one tensor.

A head with reach w needs ceil(w) entries, whatever the length of the text; a head with infinite reach a store that
doubles when it is full. Entry i of a head (its i-th token) lies in slot i mod capacity, so tiles with short windows
never pay for the longest. Entries are read in the order of the text. Positions a short ring has forgotten return newer
entries; its window gives them weight zero. Writes that are dropped go to one spare slot at the end.

Letters: B batch, G key heads, T new tokens, S keys in view, X channels.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from keysift.kernels.rings import Rings

_FIRST_ROOM = 64


@dataclass(frozen=True, eq=False)
class Append:
    """How long each row is before and after a call, and which of its tokens are real."""

    before: list[int]
    after: list[int]
    keep_BT: Tensor | None  # None: all of them
    start: int  # the position of a row's token number 0

    @property
    def even(self) -> bool:
        """All rows have one length, before and after."""
        return self.keep_BT is None and len(set(self.before)) <= 1


@dataclass(frozen=True, eq=False)
class InOrder:
    """Entries B G S X as the text has them: row b holds count[b] of them, from its token number first[b] on."""

    entries: dict[str, Tensor]
    first: list[int]
    count: list[int]


class Store:
    """The past of one layer. `spare` more entries per ring let `crop` go that much further back."""

    def __init__(self, reach: list[float], batch: int, spare: int) -> None:
        self.needed = [math.inf if math.isinf(r) else math.ceil(r) for r in reach]
        self.limits = [needed + spare for needed in self.needed]
        self.batch = batch
        self.entries: dict[str, Tensor] = {}
        self.room = 0
        self._lay_out(torch.device("cpu"))

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.entries.values())

    def carries(self, dtype: torch.dtype) -> bool:
        """Whether entries are kept in this type; the first ones decide."""
        return all(tensor.dtype == dtype for tensor in self.entries.values())

    def slots_of(self, tokens: int) -> int:
        """Entries held for one row of so many tokens."""
        return sum(int(min(limit, tokens)) for limit in self.limits)

    def extend(self, new: Mapping[str, Tensor], append: Append) -> InOrder:
        """Remember new entries (B G T X each) and give all that their queries may need to see."""
        some = next(iter(new.values()))
        if some.shape[2] == 1:
            self._step(new, append)
            return self._in_order(append.after)
        self._grow(max(append.after, default=0), new)
        # Read before the write, which may overwrite what the first of the new tokens still see.
        old = self._in_order(append.before)
        both = self._joined(old, new, append)
        self._put(new, append)
        return both

    def step(self, new: Mapping[str, Tensor], append: Append) -> tuple[Rings, list[int]]:
        """Remember one key and value of each head a row: where all of them lie, and how many each row has in view."""
        self._step(new, append)
        keys, first, count = self._in_view(append.after)
        return Rings(self.entries["k"], self.entries["v"], self.ring_G2, first, keys), count

    def _step(self, new: Mapping[str, Tensor], append: Append) -> None:
        # One token overwrites only what just left its own window.
        self._grow(max(append.after, default=0), new)
        self._put(new, append)

    def _in_view(self, lengths: list[int]) -> tuple[int, list[int], list[int]]:
        """How many entries the longest row has in view, and of each row the number of its first one and their count."""
        width = min(self.widest, max(lengths, default=0))
        return width, [max(0, length - width) for length in lengths], [min(length, width) for length in lengths]

    def _joined(self, old: InOrder, new: Mapping[str, Tensor], append: Append) -> InOrder:
        """Old entries and the real ones of the new, without a gap between them."""
        real = [after - before for after, before in zip(append.after, append.before, strict=True)]
        count = [a + b for a, b in zip(old.count, real, strict=True)]
        empty = not any(old.count)
        entries = {name: x if empty else torch.cat((old.entries[name], x), dim=2) for name, x in new.items()}
        if append.even:
            return InOrder(entries, old.first, count)
        some = next(iter(new.values()))
        tokens, device = some.shape[2], some.device
        width = 0 if empty else next(iter(old.entries.values())).shape[2]
        number_BS = torch.arange(max(count), device=device).expand(self.batch, -1)
        held_B1 = torch.tensor(old.count, device=device)[:, None]
        if append.keep_BT is None:
            column_BT = torch.arange(tokens, device=device).expand(self.batch, -1)
        else:
            column_BT = (~append.keep_BT).long().argsort(dim=1, stable=True)  # the real ones first, in order
        fresh_BS = width + column_BT.gather(1, (number_BS - held_B1).clamp(0, tokens - 1))
        from_BS = torch.where(number_BS < held_B1, number_BS, fresh_BS)[:, None, :, None]
        return InOrder({name: x.take_along_dim(from_BS, dim=2) for name, x in entries.items()}, old.first, count)

    def _in_order(self, lengths: list[int]) -> InOrder:
        """The last entries of each row; as many columns as the longest row has in view."""
        width, first, count = self._in_view(lengths)
        if self.narrowest == self.widest and not any(first):
            heads = len(self.limits)
            return InOrder(
                {
                    name: tensor[:, : self.slots].view(self.batch, heads, self.widest, -1)[:, :, :width]
                    for name, tensor in self.entries.items()
                },
                first,
                count,
            )
        device, heads = self.offset_G.device, len(self.limits)
        if len(set(first)) == 1:
            number_S = torch.arange(first[0], first[0] + width, device=device)
            slot_X = (self.offset_G[:, None] + number_S % self.capacity_G[:, None]).flatten()
            # Whole rows at a time: several times quicker than indexing with a matrix.
            taken = {name: tensor.index_select(1, slot_X) for name, tensor in self.entries.items()}
        else:
            first_B = torch.tensor(first, device=device)[:, None, None]
            slot_BGS = (first_B + torch.arange(width, device=device)) % self.capacity_G[:, None]
            row_B = torch.arange(self.batch, device=device)[:, None, None] * (self.slots + 1)
            slot_X = (row_B + self.offset_G[:, None] + slot_BGS).flatten()
            taken = {name: tensor.flatten(0, 1).index_select(0, slot_X) for name, tensor in self.entries.items()}
        entries = {name: x.view(self.batch, heads, width, x.shape[-1]) for name, x in taken.items()}
        return InOrder(entries, first, count)

    def _put(self, new: Mapping[str, Tensor], append: Append) -> None:
        device, tokens = self.offset_G.device, next(iter(new.values())).shape[2]
        if append.even:
            end = append.after[0] if append.after else 0
            # A head keeps the last of the new tokens, as many as its ring holds; all heads are written at once.
            lasting = min(tokens, self.widest)
            index_T = torch.arange(end - lasting, end, device=device)
            slot_GT = self.offset_G[:, None] + index_T % self.capacity_G[:, None]
            if lasting > self.narrowest:
                slot_GT = torch.where(index_T >= end - self.capacity_G[:, None], slot_GT, self.slots)
            for name, tensor in new.items():
                entries = self.entries[name]
                flat = tensor.detach()[:, :, tokens - lasting :].flatten(1, 2).to(entries.dtype)
                entries.index_copy_(1, slot_GT.flatten(), flat)
            return
        before_B, after_B = (torch.tensor(x, device=device) for x in (append.before, append.after))
        if append.keep_BT is None:
            index_BT = before_B[:, None] + torch.arange(tokens, device=device)
            real = torch.ones_like(index_BT, dtype=torch.bool)
        else:
            real = append.keep_BT
            index_BT = before_B[:, None] + real.cumsum(1) - 1
        lasting_BGT = real[:, None] & (index_BT[:, None] >= after_B[:, None, None] - self.capacity_G[:, None])
        slot_BGT = self.offset_G[:, None] + index_BT[:, None] % self.capacity_G[:, None]
        slot_BX = torch.where(lasting_BGT, slot_BGT, self.slots).flatten(1)
        for name, tensor in new.items():
            flat = tensor.detach().flatten(1, 2).to(self.entries[name].dtype)
            self.entries[name].scatter_(1, slot_BX[..., None].expand_as(flat), flat)

    def _grow(self, end: int, new: Mapping[str, Tensor]) -> None:
        """Double the room until `end` fits; rings at their limit keep their size and their slots."""
        some = next(iter(new.values()))
        if not self.entries:
            self.entries = {n: t.new_zeros(self.batch, 1, t.shape[3]) for n, t in new.items()}
            self._lay_out(some.device)
        if end <= self.room or self.full_grown:
            return
        old_capacity, old_offset = self.capacity_G, self.offset_G
        self.room = max(_FIRST_ROOM, end, 2 * self.room)
        self._lay_out(some.device)
        # No ring below its limit has wrapped, so every entry keeps its slot within its head.
        head = torch.arange(len(self.limits), device=some.device).repeat_interleave(old_capacity)
        within = torch.arange(len(head), device=some.device) - old_offset[head]
        to_X = self.offset_G[head] + within
        self.entries = {name: self._moved(tensor, to_X) for name, tensor in self.entries.items()}

    def _moved(self, old: Tensor, to_X: Tensor) -> Tensor:
        grown = old.new_zeros(self.batch, self.slots + 1, old.shape[2])
        return grown.index_copy_(1, to_X, old[:, : len(to_X)])

    def _lay_out(self, device: torch.device) -> None:
        capacity = [int(min(limit, self.room)) for limit in self.limits]
        self.full_grown = all(c == limit for c, limit in zip(capacity, self.limits, strict=True))
        self.capacity = capacity
        self.narrowest, self.widest, self.slots = min(capacity), max(capacity), sum(capacity)
        self.capacity_G = torch.tensor(capacity, device=device)
        self.offset_G = self.capacity_G.cumsum(0) - self.capacity_G
        self.ring_G2 = torch.stack((self.offset_G, self.capacity_G), dim=1).cpu()

    def holds_back_to(self, length: int, longest: int) -> bool:
        """Whether a row that once was `longest` and is cut to `length` holds every key its next query looks at."""
        if not self.entries:
            return True
        return all(
            max(0, length - needed + 1) >= min(length, longest - capacity)
            for needed, capacity in zip(self.needed, self.capacity, strict=True)
        )

    def select(self, rows: Tensor) -> None:
        self.batch = len(rows)
        self.entries = {name: tensor.index_select(0, rows.to(tensor.device)) for name, tensor in self.entries.items()}
