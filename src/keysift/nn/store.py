"""What one layer remembers of past keys: for each head a ring as long as the head looks back, all rings in one tensor.

A head with reach w needs ceil(w) entries, whatever the length of the text; a head with infinite reach a store that
doubles when it is full. Entry i of a head (its i-th token) lies in slot i mod capacity, so tiles with short windows
never pay for the longest. Steps read a padded view of the ragged tensor; padding and dropped writes share one spare
slot at its end, which no query may see.

Letters: B batch, G key heads, M slots of the largest head, T new tokens, S keys in view, X channels.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

EMPTY = -1
_FIRST_ROOM = 64


@dataclass(frozen=True)
class Write:
    """Where the tokens of one call belong: their index in each row, which are real, and how long each row then is."""

    index_BT: Tensor
    keep_BT: Tensor
    ends_B: Tensor
    end: int  # of the longest row
    start: int  # the position of index 0
    even: bool = False  # all rows are as long before and after, so entries can be told by their order alone


@dataclass(frozen=True)
class Held:
    """Entries B G S X in view, and the index of each (B G S or B 1 S), EMPTY where nothing may be seen; or, of even
    rows, entries in order from the index `first` on, older than a head looks back where its ring is short."""

    entries: dict[str, Tensor]
    index: Tensor | None
    first: int = 0


class Store:
    """The past of one layer. `spare` more entries per ring let `crop` go that much further back."""

    def __init__(self, reach: list[float], batch: int, spare: int) -> None:
        self.needed = [math.inf if math.isinf(r) else math.ceil(r) for r in reach]
        self.limits = [needed + spare for needed in self.needed]
        self.batch = batch
        self.entries: dict[str, Tensor] = {}
        self.index = torch.empty(0)
        self.room = 0
        self._lay_out(torch.device("cpu"))

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.entries.values(), self.index))

    def extend(self, new: Mapping[str, Tensor], write: Write) -> Held:
        """Remember new entries (B G T X each) and give all that their queries may need to see."""
        tokens = write.index_BT.shape[1]
        self._grow(write.end, new)
        if write.even:
            return self._extend_even(new, write, write.end - tokens)
        if tokens == 1 or write.end <= self.narrowest:
            # One token overwrites only what just left its own window; before the first wrap nothing is overwritten.
            self._put(new, write)
            return self._held(min(self.widest, write.end))
        old = self._held(min(self.widest, write.end - tokens))
        assert old.index is not None
        fresh_BT = torch.where(write.keep_BT, write.index_BT, EMPTY)
        fresh = fresh_BT[:, None].expand(-1, old.index.shape[1], -1)
        # Copied before the write: what is held may be a view of the slots about to be overwritten.
        both = Held(
            {name: torch.cat((old.entries[name], new[name]), dim=2) for name in new},
            torch.cat((old.index, fresh), dim=2),
        )
        self._put(new, write)
        return both

    def _extend_even(self, new: Mapping[str, Tensor], write: Write, before: int) -> Held:
        if before == 0:
            self._put(new, write)
            return Held(dict(new), None)
        if write.end - before == 1:
            self._put(new, write)
            return self._in_order(write.end)
        old = self._in_order(before)
        entries = {name: torch.cat((old.entries[name], new[name]), dim=2) for name in new}
        self._put(new, write)
        return Held(entries, None, old.first)

    def _in_order(self, end: int) -> Held:
        """The last entries up to `end`. Where a ring is shorter than the longest, what its head no longer sees stands
        for what it has forgotten: both are out of reach."""
        width = min(self.widest, end)
        if self.narrowest == self.widest and end <= self.widest:
            return Held(self._held(width).entries, None)
        index_S = torch.arange(end - width, end, device=self.offset_G.device)
        slot_GS = self.offset_G[:, None] + index_S % self.capacity_G[:, None]
        return Held({name: tensor[:, slot_GS] for name, tensor in self.entries.items()}, None, end - width)

    def _put(self, new: Mapping[str, Tensor], write: Write) -> None:
        index_B1T = write.index_BT[:, None]
        capacity_G1 = self.capacity_G[:, None]
        lasting = write.keep_BT[:, None] & (index_B1T >= write.ends_B[:, None, None] - capacity_G1)
        slot_BGT = torch.where(lasting, self.offset_G[:, None] + index_B1T % capacity_G1, self.slots)
        slot_BX = slot_BGT.flatten(1)
        self.index.scatter_(1, slot_BX, torch.where(lasting, index_B1T, EMPTY).flatten(1))
        for name, tensor in new.items():
            flat = tensor.detach().flatten(1, 2).to(self.entries[name].dtype)
            self.entries[name].scatter_(1, slot_BX[..., None].expand_as(flat), flat)

    def _held(self, width: int) -> Held:
        if self.narrowest == self.widest:
            heads = len(self.limits)
            entries = {
                name: tensor[:, : self.slots].view(self.batch, heads, self.widest, -1)[:, :, :width]
                for name, tensor in self.entries.items()
            }
            return Held(entries, self.index[:, None, :width])
        table_GS = self.table_GM[:, :width]
        return Held({name: tensor[:, table_GS] for name, tensor in self.entries.items()}, self.index[:, table_GS])

    def _grow(self, end: int, new: Mapping[str, Tensor]) -> None:
        """Double the room until `end` fits; rings at their limit keep their size and their slots."""
        some = next(iter(new.values()))
        if not self.entries:
            self.index = torch.full((self.batch, 1), EMPTY, device=some.device)
            self.entries = {n: t.new_zeros(self.batch, 1, t.shape[3]) for n, t in new.items()}
            self._lay_out(some.device)
        if end <= self.room or self.full_grown:
            return
        old_table, old_slots = self.table_GM, self.slots
        self.room = max(_FIRST_ROOM, end, 2 * self.room)
        self._lay_out(some.device)
        from_X = old_table.flatten()
        to_X = self.table_GM[:, : old_table.shape[1]].flatten()
        real = from_X < old_slots
        from_X, to_X = from_X[real], to_X[real]
        self.index = self._moved(self.index, EMPTY, from_X, to_X)
        self.entries = {name: self._moved(tensor, 0.0, from_X, to_X) for name, tensor in self.entries.items()}

    def _moved(self, old: Tensor, empty: float, from_X: Tensor, to_X: Tensor) -> Tensor:
        grown = old.new_full((self.batch, self.slots + 1, *old.shape[2:]), empty)
        return grown.index_copy_(1, to_X, old.index_select(1, from_X))

    def _lay_out(self, device: torch.device) -> None:
        capacity = [int(min(limit, self.room)) for limit in self.limits]
        self.full_grown = all(c == limit for c, limit in zip(capacity, self.limits, strict=True))
        self.narrowest, self.widest, self.slots = min(capacity), max(capacity), sum(capacity)
        self.capacity_G = torch.tensor(capacity, device=device)
        self.offset_G = self.capacity_G.cumsum(0) - self.capacity_G
        within_M = torch.arange(self.widest, device=device)
        self.table_GM = torch.where(within_M < self.capacity_G[:, None], self.offset_G[:, None] + within_M, self.slots)

    def holds_back_to(self, length_B: Tensor) -> bool:
        """Whether rows cut to `length_B` would still hold every key their next query looks at."""
        if not self.entries:
            return True
        index_BGM = self.index[:, self.table_GM]
        needed_G = torch.tensor([n - 1 for n in self.needed], dtype=torch.float64, device=length_B.device)
        lowest_BG = (length_B[:, None] - needed_G).clamp_min(0)
        inside = (index_BGM >= lowest_BG[..., None]) & (index_BGM < length_B[:, None, None])
        return bool((inside.sum(-1) == length_B[:, None] - lowest_BG).all())

    def crop(self, length_B: Tensor) -> None:
        self.index = torch.where(self.index < length_B[:, None], self.index, EMPTY)

    def select(self, rows: Tensor) -> None:
        self.batch = len(rows)
        if self.entries:
            self.index = self.index.index_select(0, rows)
            self.entries = {name: tensor.index_select(0, rows) for name, tensor in self.entries.items()}
