"""A call cut into parts in which who sees whom needs no mask: rectangles that are seen whole, and causal squares.

Known from positions alone, without looking at tensors: one run a row, a cache before it, packed documents, padding.
What is no such part (a keep mask, positions one by one) is walked in blocks of queries, with a mask for each block.

Letters: B batch, H heads, T queries, S keys, V value width.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from keysift.kernels.call import Call

BLOCK = 256  # queries of one masked block


@dataclass(frozen=True)
class Part:
    """Queries that see all of these keys; or, where causal, the i-th query sees keys 0 to i of a square."""

    row: int | None  # of the batch; None: every row alike
    queries: slice
    keys: slice
    causal: bool

    @property
    def rows(self) -> slice:
        return slice(None) if self.row is None else slice(self.row, self.row + 1)


def cut(call: Call) -> list[Part] | None:
    """None where masks are needed."""
    positions = call.positions
    if call.keep is not None or call.bias is not None:
        return None
    if positions.pieces is not None:
        return parts(positions.pieces, 0, call.causal, call.q.shape[2], call.k.shape[2])
    if not positions.consecutive:
        return None
    return parts(None, positions.offset, call.causal, call.q.shape[2], call.k.shape[2])


def parts(pieces: Tensor | None, offset: int, causal: bool, queries: int, keys: int) -> list[Part]:
    """`pieces` as in Positions; without them each row is one piece, whose first query stands `offset` after its key."""
    if pieces is None:
        return list(_of_piece(None, 0, queries, 0, keys, offset, causal=causal))
    return [part for piece in pieces.tolist() for part in _of_piece(*piece, causal=causal)]


def _of_piece(
    row: int | None, query: int, queries: int, key: int, keys: int, offset: int, *, causal: bool
) -> Iterator[Part]:
    if not causal or (queries and offset >= keys - 1):  # the first query sees every key
        yield Part(row, slice(query, query + queries), slice(key, key + keys), False)
        return
    blind = min(max(-offset, 0), queries)  # stand before the first key
    query, queries, offset = query + blind, queries - blind, offset + blind
    past = min(offset, keys)
    square = min(keys - past, queries)
    if queries and past:
        yield Part(row, slice(query, query + queries), slice(key, key + past), False)
    if square:
        yield Part(row, slice(query, query + square), slice(key + past, key + past + square), True)
        if queries > square:  # queries after the last key see the whole square
            yield Part(row, slice(query + square, query + queries), slice(key + past, key + past + square), False)


def whole(found: list[Part] | None, queries: int, keys: int) -> Part | None:
    """The part that is the whole call, if there is one: nothing has to be cut out or joined then."""
    if found is None or len(found) != 1 or found[0].row is not None:
        return None
    covers = found[0].queries == slice(0, queries) and found[0].keys == slice(0, keys)
    return found[0] if covers else None


def blocks(call: Call, size: int | None = None) -> Iterator[tuple[slice, slice]]:
    """Blocks of queries, each with the keys it might see."""
    queries, keys = call.q.shape[2], call.k.shape[2]
    size = BLOCK if size is None else size
    for start in range(0, queries, size):
        stop = min(start + size, queries)
        last = keys
        if call.causal and call.positions.consecutive:
            last = min(max(call.positions.offset + stop, 1), keys)
        yield slice(start, stop), slice(0, last)


def seen(call: Call) -> Tensor:
    """How many keys each query sees: int64, broadcastable to B H T 1."""
    found = cut(call)
    if found is None:
        pieces = [call.visible(queries, keys).seen_BHT1 for queries, keys in blocks(call)]
        return torch.cat(pieces, dim=2)
    batch = 1 if all(part.row is None for part in found) else call.q.shape[0]
    count = torch.zeros(batch, 1, call.q.shape[2], 1, dtype=torch.int64, device=call.q.device)
    for part in found:
        keys = part.keys.stop - part.keys.start
        added = torch.arange(1, keys + 1, device=count.device)[:, None] if part.causal else keys
        count[part.rows, :, part.queries] += added
    return count


def taking_part(call: Call) -> tuple[Tensor, Tensor]:
    """Which queries see any key and which keys are seen by any query: broadcastable to B H T 1 and B H S 1."""
    queries, keys = [], None
    for rows, columns in blocks(call):
        keep = call.visible(rows, columns).keep_BHTS
        queries.append(keep.any(-1, keepdim=True))
        here = torch.nn.functional.pad(keep.any(-2), (0, call.k.shape[2] - columns.stop))
        keys = here if keys is None else keys | here
    assert keys is not None, "a call has queries"
    return torch.cat(queries, dim=2), keys[..., None]


def sums(call: Call, v_BHSV: Tensor) -> Tensor:
    """The sum of the values each query sees, B H T V."""
    found = cut(call)
    if found is None:
        summed = [
            call.visible(queries, keys).keep_BHTS.to(v_BHSV.dtype) @ v_BHSV[:, :, keys]
            for queries, keys in blocks(call)
        ]
        return torch.cat([x.expand(*v_BHSV.shape[:2], -1, -1) for x in summed], dim=2)
    only = whole(found, call.q.shape[2], call.k.shape[2])
    if only is not None:
        return _running(v_BHSV, only).expand(-1, -1, call.q.shape[2], -1)
    total = v_BHSV.new_zeros(*v_BHSV.shape[:2], call.q.shape[2], v_BHSV.shape[3])
    for part in found:
        total[part.rows, :, part.queries] += _running(v_BHSV[part.rows, :, part.keys], part)
    return total


def _running(values_BHSV: Tensor, part: Part) -> Tensor:
    return values_BHSV.cumsum(2) if part.causal else values_BHSV.sum(2, keepdim=True)
