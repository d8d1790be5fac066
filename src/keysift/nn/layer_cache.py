"""Decode cache of one layer: a ring buffer for each key head, as long as the head's window, all in one tensor.

A head with window w needs ceil(w) entries, whatever the length of the text. A head with an infinite window has a buffer
that doubles when it is full. Entry i of a head (its i-th token) is stored in slot i mod capacity, so heads with short
windows never pay for the longest window. Entries are read in text order. A short ring returns newer entries for
positions it has overwritten; its window gives them weight zero. Dropped writes go to one spare slot at the end.
The first `kept` entries of a head are never overwritten: they have slots of their own before the ring.
A layer that shifts its keys or values (nn/token_shift.py) has a second, short ring of what it shifts.

For screening, the compiled decode step also keeps a prepared copy of the keys (`prepared`), in the same slots, and what
exact search needs (docs/search.md). It prepares missing keys itself, so other writers only lower the count of prepared
tokens.

Letters: B batch, G key heads, T new tokens, S keys in view, X channels, K key width.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from keysift.core.errors import ShapeError
from keysift.kernels.cpu.decode import PREPARED_KEYS, SEARCH_STATE, Decoder, PreparedKeys
from keysift.kernels.masked_values import all_finite
from keysift.kernels.ring_buffers import RingBuffers

_FIRST_ALLOCATION = 64


@dataclass(frozen=True, eq=False)
class CacheUpdate:
    """Row lengths before and after a call, and the padding mask of its tokens."""

    before: list[int]
    after: list[int]
    keep_BT: Tensor | None  # False for padding; None if there is none
    start: int  # position of the first token of a row

    @property
    def even(self) -> bool:
        """Whether all rows have the same length, before and after."""
        return self.keep_BT is None and len(set(self.before)) <= 1


@dataclass(frozen=True, eq=False)
class CachedEntries:
    """Entries B G S X in text order: row b has count[b] of them, beginning with its token number first[b].

    The first `kept` of them are tokens 0, 1, ...; first[b] is added to the numbers of the others.
    """

    entries: dict[str, Tensor]
    first: list[int]
    count: list[int]


@dataclass(frozen=True, eq=False)
class KeyCounts:
    """Keys of the latest token that a screening layer decoded, B G each (int64).

    `in_window` keys could be accepted, `read` of them were read in fp32, the others refused by a bound; `accepted` have
    a weight above zero.
    """

    in_window: Tensor
    read: Tensor
    accepted: Tensor


class LayerCache:
    """Cached keys and values of one layer. `spare` extra entries per ring allow `crop` to go back that far.

    The first `kept` entries stay beside the rings. `shifts`: whether the layer reads what it projected for the previous
    token, which `shifted` holds.
    """

    def __init__(self, windows: list[float], batch: int, spare: int, kept: int = 0, *, shifts: bool = False) -> None:
        self.needed = [math.inf if math.isinf(window) else math.ceil(window) for window in windows]
        self.limits = [kept + needed + spare for needed in self.needed]
        self.kept = kept
        self.batch = batch
        self.entries: dict[str, Tensor] = {}
        self.allocated = 0
        self.finite = True  # whether all entries so far are known to be finite
        self.prepared: PreparedKeys | None = None
        self.shifted = LayerCache([2.0], batch, spare) if shifts else None  # a token and the one before it
        self._lay_out(torch.device("cpu"))

    @property
    def nbytes(self) -> int:
        """Bytes of all stored entries, prepared keys included."""
        others = sum(other.nbytes for other in (self.prepared, self.shifted) if other is not None)
        return sum(tensor.nbytes for tensor in self.entries.values()) + others

    def has_dtype(self, dtype: torch.dtype) -> bool:
        """Whether entries are stored in this dtype. The first entries determine it; an empty cache takes any."""
        return all(tensor.dtype == dtype for tensor in self.entries.values())

    def entries_per_row(self, tokens: int) -> int:
        """Number of entries stored for a row of `tokens` tokens."""
        return sum(int(min(limit, tokens)) for limit in self.limits)

    def check_finite(self, new: Mapping[str, Tensor]) -> bool:
        """Whether all entries, these new ones included, are known to be finite. Each entry is read once."""
        self.finite = self.finite and all_finite(*new.values())
        return self.finite

    def _check_kind(self, new: Mapping[str, Tensor]) -> None:
        """Raise ShapeError unless new entries are of the kind this cache holds. Nothing was written then."""
        for name, x in new.items():
            held = self.entries.get(name)
            now = (x.shape[1], x.shape[3], x.dtype)
            kept = now if held is None else (len(self.limits), held.shape[2], held.dtype)
            if now[0] != len(self.limits) or now[:2] != kept[:2] or (name in ("k", "v") and now != kept):
                raise ShapeError(
                    f"the cache holds {name} of {len(self.limits)} heads, {kept[1]} channels and {kept[2]}, "
                    f"got {now[0]} heads, {now[1]} channels and {now[2]}; make one with this model's cache(batch)"
                )

    def extend(self, new: Mapping[str, Tensor], update: CacheUpdate) -> CachedEntries:
        """Append new entries (B G T X each); returns all entries that their queries may attend to."""
        some = next(iter(new.values()))
        if some.shape[2] == 1:
            # A single token overwrites only the entry that has just left its window.
            self.append(new, update)
            return self._in_order(update.after)
        self._check_kind(new)
        self._grow(max(update.after, default=0), new)
        # Read before writing: the write may overwrite entries inside the windows of the first new tokens.
        old = self._in_order(update.before)
        joined = self._joined(old, new, update)
        self._put(new, update)
        return joined

    def append(self, new: Mapping[str, Tensor], update: CacheUpdate) -> None:
        """Append new entries (B G T X each) that no query of the call attends to."""
        self._check_kind(new)
        self._grow(max(update.after, default=0), new)
        self._put(new, update)

    def latest(self, update: CacheUpdate, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The last entry of each row before a call, B G 1 X; zeros for rows without one."""
        self._grow(1, like)
        held = self._in_order(update.before)
        device = self.offset_G.device
        last_B111 = torch.tensor(held.count, device=device)[:, None, None, None] - 1
        return {
            name: torch.where(last_B111 < 0, 0, x.take_along_dim(last_B111.clamp_min(0), dim=2))
            for name, x in held.entries.items()
        }

    def step(self, new: Mapping[str, Tensor], update: CacheUpdate) -> tuple[RingBuffers, list[int]]:
        """Append one key and value per head and row; returns the rings and each row's count of visible entries."""
        self.append(new, update)
        keys, first, count = self._in_view(update.after)
        return RingBuffers(self.entries["k"], self.entries["v"], self.ring_G2, first, keys), count

    def reserve(self, end: int, like: Mapping[str, Tensor]) -> None:
        """Make room for `end` entries per row of the widths and dtype of these tensors (B G T X)."""
        self._grow(end, like)

    def prepare_keys(self, decoder: Decoder, layer: int) -> PreparedKeys:
        """Room for the prepared keys of a layer of this decoder. Allocated anew, none prepared, if there is none."""
        if self.prepared is None or self.prepared.decoder is not decoder:
            count = sum(-(-capacity // PREPARED_KEYS) for capacity in self.capacity)
            rows = self.entries["k"].shape[2] + 1
            blocks = torch.zeros(self.batch, count, rows, PREPARED_KEYS)
            self.prepared = PreparedKeys(
                blocks,
                torch.zeros(self.batch, dtype=torch.int64),
                torch.zeros(self.batch, decoder.search_bytes(layer, self.ring_G2), dtype=torch.uint8),
                torch.zeros(self.batch, len(self.limits), SEARCH_STATE, dtype=torch.int64),
                decoder,
            )
        return self.prepared

    def key_counts(self) -> KeyCounts | None:
        """Keys that the latest query read and accepted; None if the compiled step did not decode it by screening."""
        if self.prepared is None or not self.prepared.state[:, :, 0].any():
            return None
        return KeyCounts(*self.prepared.state[:, :, :3].clone().unbind(2))

    def _in_view(self, lengths: list[int]) -> tuple[int, list[int], list[int]]:
        """Visible entries of the longest row, and for each row the index of the first visible entry and their count."""
        # At least one column, which is masked while every row is empty: kernels need a key.
        width = min(self.widest, max([1, *lengths]))
        return width, [max(0, length - width) for length in lengths], [min(length, width) for length in lengths]

    def first_in_view(self, update: CacheUpdate, tokens: int) -> list[int]:
        """Number of the first token of each row that a call of `tokens` tokens could attend to."""
        return self._in_view(update.after if tokens == 1 else update.before)[1]

    def _joined(self, old: CachedEntries, new: Mapping[str, Tensor], update: CacheUpdate) -> CachedEntries:
        """Old entries followed by the new ones, without padding between them."""
        real = [after - before for after, before in zip(update.after, update.before, strict=True)]
        count = [a + b for a, b in zip(old.count, real, strict=True)]
        empty = not any(old.count)
        entries = {name: x if empty else torch.cat((old.entries[name], x), dim=2) for name, x in new.items()}
        if update.even:
            return CachedEntries(entries, old.first, count)
        some = next(iter(new.values()))
        tokens, device = some.shape[2], some.device
        width = 0 if empty else next(iter(old.entries.values())).shape[2]
        number_BS = torch.arange(max([1, *count]), device=device).expand(self.batch, -1)
        held_B1 = torch.tensor(old.count, device=device)[:, None]
        if update.keep_BT is None:
            column_BT = torch.arange(tokens, device=device).expand(self.batch, -1)
        else:
            column_BT = (~update.keep_BT).long().argsort(dim=1, stable=True)  # tokens first, padding last
        fresh_BS = width + column_BT.gather(1, (number_BS - held_B1).clamp(0, tokens - 1))
        from_BS = torch.where(number_BS < held_B1, number_BS, fresh_BS)[:, None, :, None]
        return CachedEntries({name: x.take_along_dim(from_BS, dim=2) for name, x in entries.items()}, old.first, count)

    def _in_order(self, lengths: list[int]) -> CachedEntries:
        """Visible entries of each row in text order, padded to the longest row."""
        width, first, count = self._in_view(lengths)
        if self.narrowest == self.widest and not any(first):
            heads = len(self.limits)
            return CachedEntries(
                {
                    name: tensor[:, : self.slots].view(self.batch, heads, self.widest, -1)[:, :, :width]
                    for name, tensor in self.entries.items()
                },
                first,
                count,
            )
        device, heads = self.offset_G.device, len(self.limits)
        if len(set(first)) == 1:
            number_S = torch.arange(width, device=device)
            number_S = torch.where(number_S < self.kept, number_S, number_S + first[0])
            slot_X = (self.offset_G[:, None] + self._slot_in_head(number_S)).flatten()
            # Whole rows at a time: several times quicker than indexing with a matrix.
            taken = {name: tensor.index_select(1, slot_X) for name, tensor in self.entries.items()}
        else:
            first_B = torch.tensor(first, device=device)[:, None, None]
            number_S = torch.arange(width, device=device)
            slot_BGS = self._slot_in_head(torch.where(number_S < self.kept, number_S, number_S + first_B))
            row_B = torch.arange(self.batch, device=device)[:, None, None] * (self.slots + 1)
            slot_X = (row_B + self.offset_G[:, None] + slot_BGS).flatten()
            taken = {name: tensor.flatten(0, 1).index_select(0, slot_X) for name, tensor in self.entries.items()}
        entries = {name: x.view(self.batch, heads, width, x.shape[-1]) for name, x in taken.items()}
        return CachedEntries(entries, first, count)

    def _put(self, new: Mapping[str, Tensor], update: CacheUpdate) -> None:
        if self.prepared is not None:
            tokens_B = self.prepared.tokens
            torch.minimum(tokens_B, torch.tensor(update.before), out=tokens_B)
            self.prepared.state[:, :, :3] = 0  # these tokens are not counted
        device, tokens = self.offset_G.device, next(iter(new.values())).shape[2]
        if update.even:
            end = update.after[0] if update.after else 0
            # Each head stores as many of the last new tokens as its ring holds; all heads are written at once.
            lasting = tokens if end - tokens < self.kept else min(tokens, self.widest)
            index_T = torch.arange(end - lasting, end, device=device)
            slot_GT = self.offset_G[:, None] + self._slot_in_head(index_T)
            if lasting > self.narrowest or self.kept:
                slot_GT = torch.where(self._lasts(index_T, end), slot_GT, self.slots)
            for name, tensor in new.items():
                entries = self.entries[name]
                flat = tensor.detach()[:, :, tokens - lasting :].flatten(1, 2).to(entries.dtype)
                entries.index_copy_(1, slot_GT.flatten(), flat)
            return
        before_B, after_B = (torch.tensor(x, device=device) for x in (update.before, update.after))
        if update.keep_BT is None:
            index_BT = before_B[:, None] + torch.arange(tokens, device=device)
            real = torch.ones_like(index_BT, dtype=torch.bool)
        else:
            real = update.keep_BT
            index_BT = before_B[:, None] + real.cumsum(1) - 1
        lasting_BGT = real[:, None] & self._lasts(index_BT[:, None], after_B[:, None, None])
        slot_BGT = self.offset_G[:, None] + self._slot_in_head(index_BT[:, None])
        slot_BX = torch.where(lasting_BGT, slot_BGT, self.slots).flatten(1)
        for name, tensor in new.items():
            flat = tensor.detach().flatten(1, 2).to(self.entries[name].dtype)
            self.entries[name].scatter_(1, slot_BX[..., None].expand_as(flat), flat)

    def _slot_in_head(self, number: Tensor) -> Tensor:
        """Slot of a token within each head, ... G T: the first ones have a slot each, the others share a ring."""
        if not self.kept:
            return number % self.capacity_G[:, None]
        ring = (self.capacity_G[:, None] - self.kept).clamp_min(1)
        return torch.where(number < self.kept, number, self.kept + (number - self.kept) % ring)

    def _lasts(self, number: Tensor, end: int | Tensor) -> Tensor:
        """Whether a token is still stored when the row has `end` tokens."""
        return (number < self.kept) | (number >= end - (self.capacity_G[:, None] - self.kept))

    def _grow(self, end: int, new: Mapping[str, Tensor]) -> None:
        """Double the capacity until `end`, at least 1, fits. Rings at their limit keep their size and slots."""
        some = next(iter(new.values()))
        end = max(end, 1)
        if not self.entries:
            self.entries = {n: t.new_zeros(self.batch, 1, t.shape[3]) for n, t in new.items()}
            self._lay_out(some.device)
        if end <= self.allocated or self.at_limit:
            return
        self.prepared = None
        old_capacity, old_offset = self.capacity_G, self.offset_G
        self.allocated = max(_FIRST_ALLOCATION, end, 2 * self.allocated)
        self._lay_out(some.device)
        # A ring below its limit has not wrapped yet, so every entry keeps its slot within its head.
        head = torch.arange(len(self.limits), device=some.device).repeat_interleave(old_capacity)
        within = torch.arange(len(head), device=some.device) - old_offset[head]
        to_X = self.offset_G[head] + within
        self.entries = {name: self._moved(tensor, to_X) for name, tensor in self.entries.items()}

    def _moved(self, old: Tensor, to_X: Tensor) -> Tensor:
        grown = old.new_zeros(self.batch, self.slots + 1, old.shape[2])
        return grown.index_copy_(1, to_X, old[:, : len(to_X)])

    def _lay_out(self, device: torch.device) -> None:
        capacity = [int(min(limit, self.allocated)) for limit in self.limits]
        self.at_limit = all(c == limit for c, limit in zip(capacity, self.limits, strict=True))
        self.capacity = capacity
        self.narrowest, self.widest, self.slots = min(capacity), max(capacity), sum(capacity)
        self.capacity_G = torch.tensor(capacity, device=device)
        self.offset_G = self.capacity_G.cumsum(0) - self.capacity_G
        self.ring_G2 = torch.stack((self.offset_G, self.capacity_G), dim=1).cpu()

    def can_crop_to(self, length: int, longest: int) -> bool:
        """Whether a row cropped to `length`, after it had been `longest` long, still has all keys of its next query."""
        if self.shifted is not None and not self.shifted.can_crop_to(length, longest):
            return False
        if not self.entries:
            return True
        return all(
            max(self.kept, length - needed + 1) >= min(length, longest - (capacity - self.kept))
            for needed, capacity in zip(self.needed, self.capacity, strict=True)
        )

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order."""
        self.batch = len(rows)
        if self.shifted is not None:
            self.shifted.select(rows)
        self.entries = {name: tensor.index_select(0, rows.to(tensor.device)) for name, tensor in self.entries.items()}
        if self.prepared is not None:
            self.prepared = self.prepared.rows(rows.cpu())
