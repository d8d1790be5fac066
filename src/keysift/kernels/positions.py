"""Positions of the queries and keys of a call, and the documents they belong to.

    Positions.counted(T)                        0, 1, 2, ... in every row
    Positions.counted(T, S, start=100)          keys from 100; the last query at the position of the last key
    Positions.packed([[3, 5], [8]])             several documents per row; each starts at 0 and attends only to itself
    Positions.padded([2, 0], T)                 rows that begin with padding, which is masked and has no position
    Positions.masked(keep_BT)                   the same for any mask
    Positions.explicit(at, key_at)              any int64 positions

The batch, the model or the cache creates them once. Backends read their structure without inspecting tensors.

Letters: B batch, H heads, T queries, S keys, N segments.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from keysift.core import shapes
from keysift.core.errors import RangeError, ShapeError

# Document numbers of padding. They differ, so padding queries and padding keys do not see each other.
_PADDING_QUERY, _PADDING_KEY = -1, -2


@dataclass(frozen=True, kw_only=True, eq=False)
class Positions:
    """Positions of queries and keys. Without `at`, they are consecutive from `first` (queries) and `key_first` (keys).

    at, key_at              int64 positions, broadcastable to B H T and B H S
    document, key_document  int64 B 1 T and B 1 S: a query sees only keys of its own document
    segments                the same as consecutive segments, for the compiled kernels: int64 N 6 on the CPU, the fields
                            of keysift_segment in csrc/screening.h; None where positions are not consecutive
    """

    queries: int
    keys: int
    first: int = 0
    key_first: int = 0
    at: Tensor | None = None
    key_at: Tensor | None = None
    document: Tensor | None = None
    key_document: Tensor | None = None
    segments: Tensor | None = None
    in_order: bool = True  # whether the keys of each row come oldest first

    @classmethod
    def counted(cls, queries: int, keys: int | None = None, *, start: int = 0) -> Self:
        """Keys at start, start + 1, ...; the last query at the position of the last key."""
        keys = queries if keys is None else keys
        return cls(queries=queries, keys=keys, first=start + keys - queries, key_first=start)

    @classmethod
    def packed(cls, lengths: Sequence[Sequence[int]], queries: int | None = None) -> Self:
        """Documents of these lengths in each row, each from position 0; the rest of a row is padding."""
        longest = max((sum(row) for row in lengths), default=0)
        queries = longest if queries is None else queries
        if queries < longest or any(length < 1 for row in lengths for length in row):
            raise RangeError(
                f"documents must have at least one token and fit in a row of {queries}, got lengths {_format(lengths)}"
            )
        runs = []
        for number, row in enumerate(lengths):
            begin = 0
            for length in row:
                runs.append((number, begin, length))
                begin += length
        return cls._of_runs(runs, len(lengths), queries)

    @classmethod
    def padded(cls, padding: Sequence[int], queries: int, *, start: int | Sequence[int] = 0) -> Self:
        """Rows that begin with this much padding; the first token of a row is at `start`, or its entry in `start`."""
        starts = [start] * len(padding) if isinstance(start, int) else list(start)
        if any(not 0 <= pad <= queries for pad in padding) or len(starts) != len(padding):
            raise RangeError(
                f"rows of {queries} hold 0 to {queries} tokens of padding and need one start each, "
                f"got padding {list(padding)} and starts {starts}"
            )
        if starts and not any(padding) and len(set(starts)) == 1:
            return cls.counted(queries, start=starts[0])
        runs = [(row, pad, queries - pad) for row, pad in enumerate(padding) if pad < queries]
        from_zero = cls._of_runs(runs, len(padding), queries)
        assert from_zero.at is not None
        at = from_zero.at + torch.tensor(starts)[:, None, None]
        return replace(from_zero, at=at, key_at=at)

    @classmethod
    def masked(cls, keep_BT: Tensor, *, start: int | Sequence[int] = 0) -> Self:
        """Tokens with keep=False are masked and have no position, wherever they are in the row.

        Outside compiled graphs, the mask is inspected once to recognise rows that are padded on the left only.
        """
        batch, queries = keep_BT.shape
        if not torch.compiler.is_compiling():
            padding = [queries - count for count in keep_BT.sum(1).tolist()]
            left = torch.arange(queries) >= torch.tensor(padding, dtype=torch.int64)[:, None]
            if torch.equal(left, keep_BT.cpu()):
                return cls.padded(padding, queries, start=start).to(keep_BT.device)
        starts = torch.tensor([start] * batch if isinstance(start, int) else list(start), device=keep_BT.device)
        at = (starts[:, None] + keep_BT.cumsum(1) - 1)[:, None]
        keep = keep_BT[:, None]
        document, key_document = torch.where(keep, 0, _PADDING_QUERY), torch.where(keep, 0, _PADDING_KEY)
        return cls(queries=queries, keys=queries, at=at, key_at=at, document=document, key_document=key_document)

    @classmethod
    def explicit(cls, at: Tensor, key_at: Tensor) -> Self:
        """Any int64 positions, broadcastable to B H T and B H S."""
        for name, tensor in (("at", at), ("key_at", key_at)):
            if tensor.dtype != torch.int64 or not 1 <= tensor.ndim <= 3:
                raise ShapeError(
                    f"{name} must hold int64 positions, broadcastable to B H and its length, got {tensor.dtype} with "
                    f"{tensor.ndim} axes; bf16 cannot tell 598 from 599"
                )
        at, key_at = (x.view((1,) * (3 - x.ndim) + x.shape) for x in (at, key_at))
        return cls(queries=at.shape[2], keys=key_at.shape[2], at=at, key_at=key_at, in_order=False)

    @classmethod
    def _of_runs(cls, runs: list[tuple[int, int, int]], batch: int, queries: int) -> Self:
        """Runs of tokens (row, first, count), in order: each starts at position 0 and is its own document."""
        segments = torch.tensor([[row, at, count, at, count, 0] for row, at, count in runs], dtype=torch.int64)
        lengths, begins, numbers, end = [], [], [], 0
        for number, (row, at, count) in enumerate(runs):
            gap = row * queries + at - end
            lengths += [gap, count]
            begins += [end, end + gap]
            numbers += [-1, number]
            end += gap + count
        lengths, begins, numbers = [*lengths, batch * queries - end], [*begins, end], [*numbers, -1]
        spread = torch.tensor([begins, numbers]).repeat_interleave(torch.tensor(lengths), dim=1)
        begin, number_ = spread.view(2, batch, 1, queries)
        at = torch.arange(batch * queries).view(batch, 1, queries) - begin
        document = torch.where(number_ < 0, _PADDING_QUERY, number_)
        key_document = torch.where(number_ < 0, _PADDING_KEY, number_)
        return cls(
            queries=queries,
            keys=queries,
            at=at,
            key_at=at,
            document=document,
            key_document=key_document,
            segments=segments.view(-1, 6),
        )

    def with_cached_keys(
        self, first: Sequence[int], count: Sequence[int], keys: int, *, kept: int = 0, start: int = 0
    ) -> Self:
        """The same queries with the keys of a cache: row b has count[b] of them, consecutive from first[b].

        If first[b] is beyond `start`, the first `kept` keys of the row are at start, start + 1, ... instead.
        """
        if kept and any(position > start for position in first):
            return self._with_kept_keys(first, count, keys, kept, start)
        if self.at is None:
            return type(self)(queries=self.queries, keys=keys, first=self.first, key_first=first[0])
        device = self.at.device
        number = torch.arange(keys, device=device)
        first_B, count_B = (torch.tensor(x, dtype=torch.int64, device=device)[:, None, None] for x in (first, count))
        segments = self.segments
        if segments is not None:
            cached = torch.tensor(count, dtype=torch.int64)[segments[:, 0]]
            columns = (*segments[:, :3].unbind(1), torch.zeros_like(cached), cached, cached - segments[:, 2])
            segments = torch.stack(columns, dim=1)
        return replace(
            self,
            keys=keys,
            key_at=first_B + number,
            document=torch.zeros_like(self.at) if self.document is None else self.document.clamp_max(0),
            key_document=torch.where(number < count_B, 0, _PADDING_KEY),
            segments=segments,
        )

    def one_earlier(self) -> Self:
        """The same with every query one position earlier, for masks that leave out the query's own key."""
        if self.at is None:
            return replace(self, first=self.first - 1)
        segments = self.segments
        if segments is not None:
            segments = torch.cat((segments[:, :5], segments[:, 5:] - 1), dim=1)
        return replace(self, at=self.at - 1, segments=segments)

    def select_rows(self, start: int, stop: int) -> Self:
        """The positions of batch rows start to stop."""
        if self.at is None:
            return self
        at, key_at, document, key_document = (
            x if x is None or x.shape[0] == 1 else x[start:stop]
            for x in (self.at, self.key_at, self.document, self.key_document)
        )
        segments = self.segments
        if segments is not None:
            segments = segments[(segments[:, 0] >= start) & (segments[:, 0] < stop)]
            segments = torch.cat((segments[:, :1] - start, segments[:, 1:]), dim=1)
        return replace(self, at=at, key_at=key_at, document=document, key_document=key_document, segments=segments)

    def _with_kept_keys(self, first: Sequence[int], count: Sequence[int], keys: int, kept: int, start: int) -> Self:
        rows = len(first)
        at = torch.arange(self.first, self.first + self.queries).expand(rows, 1, -1) if self.at is None else self.at
        joined = replace(self, at=at, key_at=at).with_cached_keys(first, count, keys)
        assert joined.key_at is not None
        number = torch.arange(keys, device=at.device)
        return replace(joined, key_at=torch.where(number < kept, start + number, joined.key_at), segments=None)

    def check(self, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Check that the positions fit these sizes (B, H, T, S), and return their tensors by name."""
        shapes.same("number of queries", "the call", sizes["T"], "positions", self.queries)
        shapes.same("number of keys", "the call", sizes["S"], "positions", self.keys)
        fields = {"at": self.at, "key_at": self.key_at, "document": self.document, "key_document": self.key_document}
        tensors = {name: tensor for name, tensor in fields.items() if tensor is not None}
        for name, tensor in tensors.items():
            axes = "BHS" if name.startswith("key") else "BHT"
            shapes.broadcastable(f"positions.{name}", tensor, axes, [sizes[axis] for axis in axes])
        return tensors

    @property
    def consecutive(self) -> bool:
        """Whether the positions of each row are consecutive, as integers rather than tensors."""
        return self.at is None

    @property
    def offset(self) -> int:
        """Position of the first query minus that of the first key, for consecutive positions."""
        return self.first - self.key_first

    def query_positions(self, device: torch.device) -> Tensor:
        """Positions of the queries: int64, broadcastable to B H T."""
        if self.at is not None:
            return self.at
        return torch.arange(self.first, self.first + self.queries, device=device).view(1, 1, -1)

    def key_positions(self, device: torch.device) -> Tensor:
        """Positions of the keys: int64, broadcastable to B H S."""
        if self.key_at is not None:
            return self.key_at
        return torch.arange(self.key_first, self.key_first + self.keys, device=device).view(1, 1, -1)

    def same_document(self, queries: slice, keys: slice) -> Tensor | None:
        """Which of these queries and keys share a document, B 1 T S; None where each row is one document."""
        if self.document is None or self.key_document is None:
            return None
        return self.document[..., queries, None] == self.key_document[..., None, keys]

    def to(self, device: torch.device | str) -> Self:
        """The same positions on another device. Segments stay on the CPU, where the kernels that read them run."""
        at, key_at, document, key_document = (
            None if x is None else x.to(device, non_blocking=True)
            for x in (self.at, self.key_at, self.document, self.key_document)
        )
        return replace(self, at=at, key_at=key_at, document=document, key_document=key_document)


def _format(lengths: Sequence[Sequence[int]]) -> str:
    return str([list(row) for row in lengths[:4]]) + (" ..." if len(lengths) > 4 else "")
