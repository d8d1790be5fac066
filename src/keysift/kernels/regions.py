"""Regions of a call that need no mask: fully visible rectangles and causal squares.

Regions follow from positions alone, without reading tensors: consecutive rows, a cache before them, packed documents,
padding. A call with a keep mask, a bias or explicit positions has no regions; it is processed in blocks of queries,
with one mask per block.

Letters: B batch, H heads, T queries, S keys, V value width.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from keysift.kernels.call import Call

BLOCK = 256  # queries of a masked block


@dataclass(frozen=True)
class Region:
    """Queries and keys that are all visible to each other or, if causal, a square in which query i sees keys 0 to i."""

    row: int | None  # of the batch; None: every row
    queries: slice
    keys: slice
    causal: bool

    @property
    def rows(self) -> slice:
        return slice(None) if self.row is None else slice(self.row, self.row + 1)


def regions_of(call: Call) -> list[Region] | None:
    """The regions of a call, or None where masks are needed."""
    positions = call.positions
    if call.keep is not None or call.bias is not None:
        return None
    if positions.segments is not None:
        return regions(positions.segments, 0, call.causal, call.q.shape[2], call.k.shape[2])
    if not positions.consecutive:
        return None
    return regions(None, positions.offset, call.causal, call.q.shape[2], call.k.shape[2])


def regions(segments: Tensor | None, offset: int, causal: bool, queries: int, keys: int) -> list[Region]:
    """The regions of these segments (see Positions). With None, each row is one segment with this offset."""
    if segments is None:
        return list(_regions_of_segment(None, 0, queries, 0, keys, offset, causal=causal))
    return [region for segment in segments.tolist() for region in _regions_of_segment(*segment, causal=causal)]


def _regions_of_segment(
    row: int | None, query: int, queries: int, key: int, keys: int, offset: int, *, causal: bool
) -> Iterator[Region]:
    if not causal or (queries and offset >= keys - 1):  # the first query sees every key
        yield Region(row, slice(query, query + queries), slice(key, key + keys), False)
        return
    blind = min(max(-offset, 0), queries)  # queries before the first key
    query, queries, offset = query + blind, queries - blind, offset + blind
    cached = min(offset, keys)
    square = min(keys - cached, queries)
    if queries and cached:
        yield Region(row, slice(query, query + queries), slice(key, key + cached), False)
    if square:
        diagonal = slice(key + cached, key + cached + square)
        yield Region(row, slice(query, query + square), diagonal, True)
        if queries > square:  # queries after the last key see the whole square
            yield Region(row, slice(query + square, query + queries), diagonal, False)


def covering_region(all_regions: list[Region] | None, queries: int, keys: int) -> Region | None:
    """The single region that covers the whole call, if there is one: nothing has to be cut or joined then."""
    if all_regions is None or len(all_regions) != 1 or all_regions[0].row is not None:
        return None
    region = all_regions[0]
    return region if region.queries == slice(0, queries) and region.keys == slice(0, keys) else None


def query_blocks(call: Call, size: int | None = None) -> Iterator[tuple[slice, slice]]:
    """Blocks of queries, each with the keys it may see."""
    queries, keys = call.q.shape[2], call.k.shape[2]
    size = BLOCK if size is None else size
    for start in range(0, queries, size):
        stop = min(start + size, queries)
        last = keys
        if call.causal and call.positions.consecutive:
            last = min(max(call.positions.offset + stop, 1), keys)
        yield slice(start, stop), slice(0, last)


def visible_counts(call: Call) -> Tensor:
    """The number of keys each query sees: int64, broadcastable to B H T 1."""
    all_regions = regions_of(call)
    if all_regions is None:
        return torch.cat([call.visible(queries, keys).count_BHT1 for queries, keys in query_blocks(call)], dim=2)
    batch = 1 if all(region.row is None for region in all_regions) else call.q.shape[0]
    counts = torch.zeros(batch, 1, call.q.shape[2], 1, dtype=torch.int64, device=call.q.device)
    for region in all_regions:
        keys = region.keys.stop - region.keys.start
        added = torch.arange(1, keys + 1, device=counts.device)[:, None] if region.causal else keys
        counts[region.rows, :, region.queries] += added
    return counts


def any_visible(call: Call) -> tuple[Tensor, Tensor]:
    """Which queries see any key, and which keys any query sees: broadcastable to B H T 1 and B H S 1."""
    queries, keys = [], None
    for rows, columns in query_blocks(call):
        keep = call.visible(rows, columns).keep_BHTS
        queries.append(keep.any(-1, keepdim=True))
        visible = torch.nn.functional.pad(keep.any(-2), (0, call.k.shape[2] - columns.stop))
        keys = visible if keys is None else keys | visible
    assert keys is not None, "a call has queries"
    return torch.cat(queries, dim=2), keys[..., None]


def visible_value_sums(call: Call, v_BHSV: Tensor) -> Tensor:
    """The sum of the values each query sees, B H T V."""
    all_regions = regions_of(call)
    if all_regions is None:
        sums = [
            call.visible(queries, keys).keep_BHTS.to(v_BHSV.dtype) @ v_BHSV[:, :, keys]
            for queries, keys in query_blocks(call)
        ]
        return torch.cat([x.expand(*v_BHSV.shape[:2], -1, -1) for x in sums], dim=2)
    covering = covering_region(all_regions, call.q.shape[2], call.k.shape[2])
    if covering is not None:
        return _region_sum(v_BHSV, covering).expand(-1, -1, call.q.shape[2], -1)
    total = v_BHSV.new_zeros(*v_BHSV.shape[:2], call.q.shape[2], v_BHSV.shape[3])
    for region in all_regions:
        total[region.rows, :, region.queries] += _region_sum(v_BHSV[region.rows, :, region.keys], region)
    return total


def _region_sum(values_BHSV: Tensor, region: Region) -> Tensor:
    return values_BHSV.cumsum(2) if region.causal else values_BHSV.sum(2, keepdim=True)
