"""Work items of a kernel: blocks of queries or keys, none of which spans two segments."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

_QUERIES, _KEYS = 2, 4  # columns of `Positions.segments`


class Blocks(NamedTuple):
    """Number of work items, and their table: the six fields of a segment and the first token of the block, int64 N 7.

    Without segments there is no table: item n is block n % per_row of batch row n // per_row.
    """

    items: int
    per_row: int
    table: Tensor | None


# Layers share the positions of their batch, so a table is built and copied to the device once per batch.
_tables: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def query_blocks(segments: Tensor | None, rows: int, queries: int, size: int, device: torch.device) -> Blocks:
    """Blocks of `size` queries."""
    return _blocks(segments, rows, queries, size, device, _QUERIES)


def key_blocks(segments: Tensor | None, rows: int, keys: int, size: int, device: torch.device) -> Blocks:
    """Blocks of `size` keys."""
    return _blocks(segments, rows, keys, size, device, _KEYS)


def _blocks(segments: Tensor | None, rows: int, length: int, size: int, device: torch.device, counted: int) -> Blocks:
    if segments is None:
        per_row = -(-length // size)
        return Blocks(rows * per_row, per_row, None)
    tables = _tables.setdefault(segments, {})  # type: ignore[no-untyped-call]
    key = (counted, size, device)
    if key not in tables:
        tables[key] = _table(segments, size, counted).to(device, non_blocking=True)
    return Blocks(len(tables[key]), 0, tables[key])


def _table(segments: Tensor, size: int, counted: int) -> Tensor:
    blocks_N = (segments[:, counted] + (size - 1)) // size
    before_N = blocks_N.cumsum(0) - blocks_N
    first = (torch.arange(int(blocks_N.sum())) - before_N.repeat_interleave(blocks_N)) * size
    return torch.cat((segments.repeat_interleave(blocks_N, dim=0), first[:, None]), dim=1).contiguous()
