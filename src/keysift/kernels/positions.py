"""Where the queries and keys of a call stand, and who may see whom: one value that every backend asks.

    Positions.counted(T)                        0, 1, 2, ... in every row
    Positions.counted(T, S, start=100)          keys from 100 on, and the last query on the last key
    Positions.packed([[3, 5], [8]])             documents in a row: each counts from 0 and sees only itself
    Positions.padded([2, 0], T)                 rows that begin with padding, which takes no position and no part
    Positions.masked(keep_BT)                   the same for any mask
    Positions.explicit(at, key_at)              any int64 positions

Made once, by whoever knows: the batch, the model or the cache. Nothing below looks at tensors to find out.

Letters: B batch, H heads, T queries, S keys, N pieces.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from keysift.core import shapes
from keysift.core.errors import RangeError, ShapeError

# Documents of padding. They differ, so no query shares one with any key.
_NO_QUERY, _NO_KEY = -1, -2


@dataclass(frozen=True, kw_only=True, eq=False)
class Positions:
    """Without `at`, every row counts up by one from `first` (queries) and `key_first` (keys).

    at, key_at              int64 positions, broadcastable to B H T and B H S
    document, key_document  int64 B 1 T and B 1 S: a query sees keys of its own document only
    pieces                  the same in runs, for kernels that walk along rows: int64 N 6 on the CPU, the fields of
                            keysift_piece in csrc/screening.h; None where positions are no runs
    """

    queries: int
    keys: int
    first: int = 0
    key_first: int = 0
    at: Tensor | None = None
    key_at: Tensor | None = None
    document: Tensor | None = None
    key_document: Tensor | None = None
    pieces: Tensor | None = None

    @classmethod
    def counted(cls, queries: int, keys: int | None = None, *, start: int = 0) -> Self:
        """Keys stand at start, start + 1, ...; the last query stands on the last key."""
        keys = queries if keys is None else keys
        return cls(queries=queries, keys=keys, first=start + keys - queries, key_first=start)

    @classmethod
    def packed(cls, lengths: Sequence[Sequence[int]], queries: int | None = None) -> Self:
        """Documents of these lengths in each row, each counting from 0; what is left of a row is padding."""
        longest = max((sum(row) for row in lengths), default=0)
        queries = longest if queries is None else queries
        if queries < longest or any(length < 1 for row in lengths for length in row):
            raise RangeError(
                f"documents have at least one token and must fit in a row of {queries}, got lengths {_shown(lengths)}"
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
        """Rows that begin with this much padding; the first token of a row stands at `start` (one, or one a row)."""
        starts = [start] * len(padding) if isinstance(start, int) else list(start)
        if any(not 0 <= pad <= queries for pad in padding) or len(starts) != len(padding):
            raise RangeError(
                f"rows of {queries} hold 0 to {queries} tokens of padding and need one start each, "
                f"got padding {list(padding)} and starts {starts}"
            )
        if starts and not any(padding) and len(set(starts)) == 1:
            return cls.counted(queries, start=starts[0])
        runs = [(row, pad, queries - pad) for row, pad in enumerate(padding) if pad < queries]
        made = cls._of_runs(runs, len(padding), queries)
        assert made.at is not None
        at = made.at + torch.tensor(starts)[:, None, None]
        return replace(made, at=at, key_at=at)

    @classmethod
    def masked(cls, keep_BT: Tensor, *, start: int | Sequence[int] = 0) -> Self:
        """Tokens with keep=False take no position and no part, wherever they stand.

        The mask is looked at, once, to find rows that only begin with padding; not inside a compiled graph.
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
        document, key_document = torch.where(keep, 0, _NO_QUERY), torch.where(keep, 0, _NO_KEY)
        return cls(queries=queries, keys=queries, at=at, key_at=at, document=document, key_document=key_document)

    @classmethod
    def explicit(cls, at: Tensor, key_at: Tensor) -> Self:
        """Any int64 positions, broadcastable to B H T and B H S."""
        for name, given in (("at", at), ("key_at", key_at)):
            if given.dtype != torch.int64 or not 1 <= given.ndim <= 3:
                raise ShapeError(
                    f"{name} must hold int64 positions, broadcastable to B H and its length, got {given.dtype} with "
                    f"{given.ndim} axes; bf16 cannot tell 598 from 599"
                )
        at, key_at = (x.view((1,) * (3 - x.ndim) + x.shape) for x in (at, key_at))
        return cls(queries=at.shape[2], keys=key_at.shape[2], at=at, key_at=key_at)

    @classmethod
    def _of_runs(cls, runs: list[tuple[int, int, int]], batch: int, queries: int) -> Self:
        """Runs of tokens (row, first, count), in order: each counts from 0 and is a document of its own."""
        pieces = torch.tensor([[row, at, count, at, count, 0] for row, at, count in runs], dtype=torch.int64)
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
        document = torch.where(number_ < 0, _NO_QUERY, number_)
        key_document = torch.where(number_ < 0, _NO_KEY, number_)
        return cls(
            queries=queries,
            keys=queries,
            at=at,
            key_at=at,
            document=document,
            key_document=key_document,
            pieces=pieces.view(-1, 6),
        )

    def seeing(self, first: Sequence[int], count: Sequence[int], keys: int) -> Self:
        """The same queries, with keys of a cache: in row b, count[b] of them, which count up from first[b]."""
        if self.at is None:
            return type(self)(queries=self.queries, keys=keys, first=self.first, key_first=first[0])
        device = self.at.device
        number = torch.arange(keys, device=device)
        first_B, count_B = (torch.tensor(x, dtype=torch.int64, device=device)[:, None, None] for x in (first, count))
        pieces = self.pieces
        if pieces is not None:
            held = torch.tensor(count, dtype=torch.int64)[pieces[:, 0]]
            pieces = torch.stack((*pieces[:, :3].unbind(1), torch.zeros_like(held), held, held - pieces[:, 2]), dim=1)
        return replace(
            self,
            keys=keys,
            key_at=first_B + number,
            document=torch.zeros_like(self.at) if self.document is None else self.document.clamp_max(0),
            key_document=torch.where(number < count_B, 0, _NO_KEY),
            pieces=pieces,
        )

    def check(self, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Refuse to stand for tensors of other sizes (B, H, T, S); give the tensors every backend may read."""
        shapes.same("number of queries", "the call", sizes["T"], "positions", self.queries)
        shapes.same("number of keys", "the call", sizes["S"], "positions", self.keys)
        given = {"at": self.at, "key_at": self.key_at, "document": self.document, "key_document": self.key_document}
        found = {name: tensor for name, tensor in given.items() if tensor is not None}
        for name, tensor in found.items():
            axes = "BHS" if name.startswith("key") else "BHT"
            shapes.broadcastable(f"positions.{name}", tensor, axes, [sizes[axis] for axis in axes])
        return found

    @property
    def consecutive(self) -> bool:
        """Whether each row is one run, known without pieces."""
        return self.at is None

    @property
    def offset(self) -> int:
        """How far the first query stands after the first key, where each row is one run."""
        return self.first - self.key_first

    def of_queries(self, device: torch.device) -> Tensor:
        """int64, broadcastable to B H T."""
        if self.at is not None:
            return self.at
        return torch.arange(self.first, self.first + self.queries, device=device).view(1, 1, -1)

    def of_keys(self, device: torch.device) -> Tensor:
        if self.key_at is not None:
            return self.key_at
        return torch.arange(self.key_first, self.key_first + self.keys, device=device).view(1, 1, -1)

    def same_document(self, queries: slice, keys: slice) -> Tensor | None:
        """B 1 T S for a part of the queries and keys; None where each row is one document."""
        if self.document is None or self.key_document is None:
            return None
        return self.document[..., queries, None] == self.key_document[..., None, keys]

    def to(self, device: torch.device | str) -> Self:
        """Pieces stay on the CPU: the kernels that read them run there, or are launched from there."""
        at, key_at, document, key_document = (
            None if x is None else x.to(device, non_blocking=True)
            for x in (self.at, self.key_at, self.document, self.key_document)
        )
        return replace(self, at=at, key_at=key_at, document=document, key_document=key_document)


def _shown(lengths: Sequence[Sequence[int]]) -> str:
    return str([list(row) for row in lengths[:4]]) + (" ..." if len(lengths) > 4 else "")
