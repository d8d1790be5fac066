"""Regions of a call whose masks follow from integers: fully visible rectangles, causal squares and bands of a window.

Regions follow from positions alone, without reading tensors: consecutive rows, a cache before them, packed documents,
padding. A window cuts a row into blocks of queries, each with the keys of its band. A call with a keep mask, a bias or
explicit positions has no regions; it is processed in blocks of queries, with one mask per block.

Letters: B batch, H heads, T queries, S keys, V value width.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from keysift.kernels.call import Call

BLOCK = 256  # queries of a masked block
BAND = 64  # queries of a block of a window: fewer waste less of the band's corners, more make fewer calls


@dataclass(frozen=True)
class Band:
    """Query i sees key j iff 0 <= i + shift - j < window, both counted from the first of the region."""

    shift: int
    window: int

    def visible(self, shape: tuple[int, int], device: torch.device) -> Tensor:
        """The mask of a region of this many queries and keys, boolean T S."""
        queries, keys = shape
        distance_TS = torch.arange(queries, device=device)[:, None] + self.shift - torch.arange(keys, device=device)
        return (distance_TS >= 0) & (distance_TS < self.window)


@dataclass(frozen=True)
class Region:
    """Queries and keys that are all visible to each other or, if causal, a square in which query i sees keys 0 to i.

    With a band, it alone decides.
    """

    row: int | None  # of the batch; None: every row
    queries: slice
    keys: slice
    causal: bool
    band: Band | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Number of queries and of keys."""
        return self.queries.stop - self.queries.start, self.keys.stop - self.keys.start

    @property
    def rows(self) -> slice:
        return slice(None) if self.row is None else slice(self.row, self.row + 1)


def regions_of(call: Call) -> list[Region] | None:
    """The regions of a call, or None where masks are needed."""
    positions = call.positions
    if call.keep is not None or call.bias is not None:
        return None
    if positions.segments is None and not positions.consecutive:
        return None
    if call.kept and (positions.segments is not None or call.slopes is not None):
        return None  # segments do not say where the first positions are, and a band has no kept keys
    return regions(window_mask_of(call), call.q.shape[2], call.k.shape[2])


class WindowMask(NamedTuple):
    """The mask of a call as integers, which determine its regions; the operators receive the fields one by one."""

    segments: Tensor | None  # see Positions; None: each row is one segment with this offset
    offset: int
    causal: bool
    window: int  # 0: none
    kept: int  # keys of a row that are visible from beyond the window
    by_distance: bool = False  # every region needs a mask, so that there are bands only


def window_mask_of(call: Call) -> WindowMask:
    """The mask of a call with consecutive positions or segments."""
    positions = call.mask_positions
    offset = positions.offset if positions.segments is None else 0
    kept = max(call.kept - positions.key_first, 0) if positions.consecutive else 0
    return WindowMask(positions.segments, offset, call.causal, call.mask_window or 0, kept, call.slopes is not None)


def regions(mask: WindowMask, queries: int, keys: int) -> list[Region]:
    """The regions of a call with this mask."""
    segments, offset, causal, window, kept, by_distance = mask
    whole = (None, 0, queries, 0, keys, offset)
    rows: list[tuple[int, ...]] = [whole] if segments is None else segments.tolist()  # type: ignore[list-item]
    if by_distance:
        longest = max((row[2] + row[5] for row in rows), default=0)
        size = BAND if window else 4 * BAND
        return [region for segment in rows for region in _bands(segment, window or max(longest, 1), size, masked=True)]
    return [region for segment in rows for region in regions_of_segment(segment, causal, window, min(kept, keys))]


def regions_of_segment(segment: tuple[int, ...], causal: bool, window: int, kept: int) -> Iterator[Region]:
    """The regions of one segment, a row of `Positions.segments` (row None: every row)."""
    row, query, queries, key, keys, offset = segment
    if window and offset + queries > window:
        yield from _bands(segment, window, BAND)
        # Beyond the window, query i sees the kept keys up to i + offset - window: a segment of its own.
        if kept:
            yield from regions_of_segment((row, query, queries, key, kept, offset - window), True, 0, 0)
        return
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


def _bands(segment: tuple[int, ...], window: int, size: int, *, masked: bool = False) -> Iterator[Region]:
    """Blocks of the queries that see any key of this segment through the window, each with the keys of its band."""
    row, query, queries, key, keys, offset = segment
    seeing = range(max(-offset, 0), min(queries, keys - offset + window - 1))
    for start in seeing[::size]:
        stop = min(start + size, seeing.stop)
        first, last = max(start + offset - window + 1, 0), min(stop + offset, keys)
        everything = stop + offset - first <= window and last == start + offset + 1
        band = None if everything and not masked else Band(start + offset - first, window)
        yield Region(row, slice(query + start, query + stop), slice(key + first, key + last), False, band)


def disjoint(all_regions: list[Region]) -> bool:
    """Whether no query is in two regions, so that nothing has to be joined."""
    ordered = sorted((region.row or 0, region.queries.start, region.queries.stop) for region in all_regions)
    return all(a[0] < b[0] or a[2] <= b[1] for a, b in pairwise(ordered))


def covering_region(all_regions: list[Region] | None, queries: int, keys: int) -> Region | None:
    """The single region that covers the whole call, if there is one: nothing has to be cut or joined then."""
    if all_regions is None or len(all_regions) != 1 or all_regions[0].row is not None:
        return None
    region = all_regions[0]
    return region if region.queries == slice(0, queries) and region.keys == slice(0, keys) else None


def query_blocks(call: Call, size: int | None = None) -> Iterator[tuple[slice, slice]]:
    """Blocks of queries, each with the keys it may see."""
    queries = call.q.shape[2]
    size = BLOCK if size is None else size
    for start in range(0, queries, size):
        stop = min(start + size, queries)
        first, last = _keys_in_window(call, start, stop)
        yield slice(start, stop), slice(first, last)


def _keys_in_window(call: Call, start: int, stop: int) -> tuple[int, int]:
    """First and last key, exclusive, that these queries may see; at least one key."""
    keys, window, positions = call.k.shape[2], call.mask_window, call.mask_positions
    if not call.causal or not positions.consecutive:
        return 0, keys
    last = min(max(positions.offset + stop, 1), keys)
    if window is None or call.kept > positions.key_first:
        return 0, last
    return min(max(positions.offset + start - window + 1, 0), last - 1), last


def visible_counts(call: Call) -> Tensor:
    """The number of keys each query sees: int64, broadcastable to B H T 1."""
    if regions_of(call) is None:
        return torch.cat([call.visible(queries, keys).count_BHT1 for queries, keys in query_blocks(call)], dim=2)
    mask, device = window_mask_of(call), call.q.device
    if mask.segments is None:
        at_T = torch.arange(call.q.shape[2], device=device) + mask.offset
        return _counts(mask, at_T, call.k.shape[2]).view(1, 1, -1, 1)
    counts = torch.zeros(call.q.shape[0], 1, call.q.shape[2], 1, dtype=torch.int64, device=device)
    for row, query, queries, _, keys, offset in mask.segments.tolist():
        at_T = torch.arange(queries, device=device) + offset
        counts[row, 0, query : query + queries, 0] += _counts(mask, at_T, keys)
    return counts


def _counts(mask: WindowMask, at_T: Tensor, keys: int) -> Tensor:
    """Number of keys that the queries at these positions see, counted from the first of the `keys`."""
    if not mask.causal:
        return torch.full_like(at_T, keys)
    beyond_T = (at_T - mask.window + 1).clamp(0, keys) if mask.window else torch.zeros_like(at_T)
    return (at_T + 1).clamp(0, keys) - beyond_T + beyond_T.clamp(max=mask.kept)


def own_keys(segments: Tensor | None, offset: int, q: Tensor, keys: int) -> tuple[Tensor, Tensor]:
    """The index of the key at the position of each query, and whether there is one: B 1 T, or 1 1 T."""
    batch, _, queries, _ = q.shape
    if segments is None:
        index = (torch.arange(queries, device=q.device) + offset).view(1, 1, -1)
        return index.clamp(0, keys - 1), (index >= 0) & (index < keys)
    index, seen = torch.zeros(batch, queries, dtype=torch.int64), torch.zeros(batch, queries, dtype=torch.bool)
    for row, query, count, key, key_count, segment_offset in segments.tolist():
        at = torch.arange(segment_offset, segment_offset + count)
        index[row, query : query + count] = key + at.clamp(0, max(key_count - 1, 0))
        seen[row, query : query + count] = (at >= 0) & (at < key_count)
    return index[:, None].clamp_max(keys - 1), seen[:, None]


def any_visible(call: Call) -> tuple[Tensor, Tensor]:
    """Which queries see any key, and which keys any query sees: broadcastable to B H T 1 and B H S 1."""
    queries, keys = [], None
    for rows, columns in query_blocks(call):
        keep = call.visible(rows, columns).keep_BHTS
        queries.append(keep.any(-1, keepdim=True))
        visible = torch.nn.functional.pad(keep.any(-2), (columns.start, call.k.shape[2] - columns.stop))
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
    if region.band is not None:
        return _band_mask(region, values_BHSV.device).to(values_BHSV.dtype) @ values_BHSV
    return values_BHSV.cumsum(2) if region.causal else values_BHSV.sum(2, keepdim=True)


def _band_mask(region: Region, device: torch.device) -> Tensor:
    assert region.band is not None
    return region.band.visible(region.shape, device)
