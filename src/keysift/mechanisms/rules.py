"""How scores become weights, as a type. What a backend may do follows from the type, never from a mechanism's name.

    Pointwise      w = judge(x, distance)                         each key alone; blocks of keys add up in any order
    Counted        w = judge(x, distance, seen)                   the same once it is known how many keys are visible
    RunningSums    w = top(x) / (sum of bottom(x) + rest)         one pass, with sums rescaled as the maximum grows
    Softmax        w = gain (softmax(factor x) - share softmax(y) - level)      one pass for each softmax
    Threshold      w = max((order - 1) x - tau, 0)^(1/(order-1))  tau first, from the whole row; then one pass
    TwoSoftmaxes   w = combine(softmax(x), softmax(y))            both normalisers first, then one pass
    RowMap         w = weigh(x, [y,] keep)                        anything else; whole rows at a time

The fields are plain functions of tensors; they name the scalars they need as keyword-only parameters. They know of no
mask: scores of keys that take no part arrive as 0, their weights are set to 0 by the caller, and sums over a row leave
them out here. Only a row map with a mathematics of its own (RowMap, Threshold) is told who takes part.

Letters: B batch, H heads, T queries, S keys.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from keysift.mechanisms import parts


@dataclass(frozen=True)
class Visible:
    """Which keys a query may see and how far away they are. Integers decide; nothing here is a float."""

    keep_BHTS: Tensor
    distance_BHTS: Tensor

    @property
    def seen_BHT1(self) -> Tensor:
        """How many keys each query sees: the n of every mechanism that counts."""
        return self.keep_BHTS.sum(-1, keepdim=True)


Step = Callable[..., Tensor]
Number = Callable[..., "Tensor | float"]


class Apply(Protocol):
    """Calls a function of the mechanism with tensors, and with the scalars it names."""

    def __call__(self, step: Callable[..., Any], *tensors: Tensor) -> Any: ...


Maps = tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """The common part: which functions a rule holds, how many score maps it reads, what its form alone promises."""

    absolute: ClassVar[bool] = False
    single_pass: ClassVar[bool] = False

    @property
    def maps(self) -> int:
        return 1

    @property
    def steps(self) -> tuple[Callable[..., object], ...]:
        held = (getattr(self, field.name) for field in fields(self))
        return tuple(step for step in held if callable(step))

    @abstractmethod
    def weigh(self, maps: Maps, visible: Visible, apply: Apply) -> Tensor:
        """The definition, dense: weights B H T S; what it says of keys that take no part is not read."""


@dataclass(frozen=True, kw_only=True)
class Pointwise(Rule):
    """w = judge(x, distance, *, scalars): no key knows of another."""

    judge: Step
    absolute: ClassVar[bool] = True
    single_pass: ClassVar[bool] = True

    def weigh(self, maps: Maps, visible: Visible, apply: Apply) -> Tensor:
        w: Tensor = apply(self.judge, maps[0], visible.distance_BHTS)
        return w


@dataclass(frozen=True, kw_only=True)
class Counted(Rule):
    """w = judge(x, distance, seen, *, scalars), `seen` the number of keys the query sees, at least 1."""

    judge: Step
    single_pass: ClassVar[bool] = True

    def weigh(self, maps: Maps, visible: Visible, apply: Apply) -> Tensor:
        w: Tensor = apply(self.judge, maps[0], visible.distance_BHTS, counted(visible.seen_BHT1, maps[0]))
        return w


@dataclass(frozen=True, kw_only=True)
class RunningSums(Rule):
    """w = top / (sum of bottom over the visible keys + rest), and 0 where that is 0.

    `terms(x, m)` gives top and bottom, what a key adds to the numerator and to the denominator; `rest(m)` is added to
    the denominator once. All of them come times exp(-m), m = max(max x, 0), so that none overflows; a running sum is
    carried to a larger m by that factor alone.
    """

    terms: Callable[..., tuple[Tensor, Tensor]]
    rest: Step | None = None
    single_pass: ClassVar[bool] = True

    def weigh(self, maps: Maps, visible: Visible, apply: Apply) -> Tensor:
        x, keep = maps[0], visible.keep_BHTS
        m = parts.visible_max(x, keep).clamp_min(0)
        top, bottom = apply(self.terms, x, m)
        total = torch.where(keep, bottom, 0.0).sum(-1, keepdim=True)
        if self.rest is not None:
            total = total + apply(self.rest, m)
        w: Tensor = top / torch.where(total > 0, total, 1.0)
        return w


@dataclass(frozen=True, kw_only=True)
class Softmax(Rule):
    """w = gain (softmax(factor x, with a sink) - share softmax(factor y) - level): every piece but the first optional.

    factor(seen, *, ...)   in front of the scores
    sink(*, ...)           the logit of one more key, which has no value
    share(*, ...)          how much of the second map's softmax is subtracted
    level(seen, *, ...)    what is subtracted from the weight of every visible key
    gain(*, ...)           in front of the whole
    """

    factor: Step | None = None
    sink: Number | None = None
    share: Step | None = None
    level: Step | None = None
    gain: Step | None = None
    single_pass: ClassVar[bool] = True

    @property
    def maps(self) -> int:
        return 1 if self.share is None else 2

    def weigh(self, maps: Maps, visible: Visible, apply: Apply) -> Tensor:
        keep, seen = visible.keep_BHTS, counted(visible.seen_BHT1, maps[0])
        if self.factor is not None:
            factor = apply(self.factor, seen)
            maps = tuple(factor * x for x in maps)
        w = parts.softmax(maps[0], keep, sink=None if self.sink is None else apply(self.sink))
        if self.share is not None:
            w = w - apply(self.share) * parts.softmax(maps[1], keep)
        if self.level is not None:
            w = w - apply(self.level, seen)
        return w if self.gain is None else apply(self.gain) * w


@dataclass(frozen=True, kw_only=True)
class Threshold(Rule):
    """w = max((order - 1) x - tau, 0)^(1 / (order - 1)), tau the one number with sum w = 1.

    `weigh_row(x, keep, *, ...)` solves for tau and knows its derivative; the `order`, a constant or `order(*, ...)`,
    is all that a backend needs to do the same block by block.
    """

    order: Number | float
    weigh_row: Step

    def weigh(self, maps: Maps, visible: Visible, apply: Apply) -> Tensor:
        w: Tensor = apply(self.weigh_row, maps[0], visible.keep_BHTS)
        return w


@dataclass(frozen=True, kw_only=True)
class TwoSoftmaxes(Rule):
    """w = combine(softmax(x), softmax(y), *, ...) key by key, then divided by its sum (0 where that is 0) if asked."""

    combine: Step
    renormalise: bool = False

    @property
    def maps(self) -> int:
        return 2

    def weigh(self, maps: Maps, visible: Visible, apply: Apply) -> Tensor:
        keep = visible.keep_BHTS
        w: Tensor = apply(self.combine, *(parts.softmax(x, keep) for x in maps))
        return parts.share(torch.where(keep, w, 0.0)) if self.renormalise else w


@dataclass(frozen=True, kw_only=True)
class RowMap(Rule):
    """w = weigh_row(x, [y,] keep, *, ...): a map of the whole row of which nothing else is known."""

    weigh_row: Step
    reads: int = 1

    @property
    def maps(self) -> int:
        return self.reads

    def weigh(self, maps: Maps, visible: Visible, apply: Apply) -> Tensor:
        w: Tensor = apply(self.weigh_row, *maps, visible.keep_BHTS)
        return w


def counted(seen: Tensor, like: Tensor) -> Tensor:
    """n as a number one can divide by and take the logarithm of; a row that sees nothing counts as 1."""
    return seen.clamp_min(1).to(like.dtype)
