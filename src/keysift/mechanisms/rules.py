"""Rules: how scores become weights. A backend decides by the type of the rule, never by the name of a mechanism.

Pointwise rules make pointwise mechanisms. Counted, RunningSums, StickBreaking and Softmax rules make additive
(single-pass) ones. All others make row-wise ones.

    Pointwise      w = weigh_key(x, distance)                     each key alone; blocks of keys add up in any order
    Counted        w = weigh_key(x, distance, count)              the same, given the number of visible keys; minus the
                                                                  same of a second map, if there is one
    RunningSums    w = top(x) / (sum of bottom(x) + rest)         one pass, with sums rescaled as the maximum grows
    StickBreaking  w = taken(x) prod of left(x) of newer keys     one pass from the newest key to the oldest
    Softmax        w = gain (softmax(factor x) - share softmax(y) - level)      one pass for each softmax
    Threshold      w = max((order-1) factor x - tau, 0)^(1/(order-1))   tau first, from the whole row; then one pass
    TwoSoftmaxes   w = combine(softmax(x), softmax(y))            both normalisers first, then one pass
    Rectified      w = max(0, gain (softmax(x) - ... - level))    normalisers first, then one pass
    AboveMean      w = max(0, u - offset mean u)^power / sum      the mean first, then one pass
    RowMap         w = weigh(x, [y,] keep[, distance])            anything else; whole rows at a time

The fields are plain functions of tensors. Keyword-only parameters name the scalars they need. They do not handle masks:
the scores of masked keys are 0, the caller sets their weights to 0, and the sums in this module leave them out. Only
`weigh_row` of Threshold and RowMap receives the attention mask, as `keep`.

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
    """The attention mask and the distances of the keys. Distances are integers, so that masks are exact.

    in_order  whether keys are known to come oldest first, so that rules that need their order need not sort
    """

    keep_BHTS: Tensor
    distance_BHTS: Tensor
    in_order: bool = True

    @property
    def count_BHT1(self) -> Tensor:
        """Number of visible keys of each query."""
        return self.keep_BHTS.sum(-1, keepdim=True)


Step = Callable[..., Tensor]
Number = Callable[..., "Tensor | float"]


class Apply(Protocol):
    """Calls a function of the mechanism with tensors and with the scalars that it names."""

    def __call__(self, step: Callable[..., Any], *tensors: Tensor) -> Any: ...


Maps = tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """Base class: the functions of a rule, its number of score maps, and the promises that follow from its type."""

    absolute: ClassVar[bool] = False
    single_pass: ClassVar[bool] = False

    @property
    def ordered(self) -> bool:
        """Whether weights depend on the order of the keys."""
        return False

    @property
    def maps(self) -> int:
        """Number of score maps."""
        return 1

    @property
    def steps(self) -> tuple[Callable[..., object], ...]:
        """The functions of the rule."""
        values = (getattr(self, field.name) for field in fields(self))
        return tuple(step for step in values if callable(step))

    @abstractmethod
    def weigh(self, maps: Maps, visible: Visible, apply: Apply) -> Tensor:
        """Dense definition: weights B H T S. The caller replaces the weights of masked keys by 0."""


@dataclass(frozen=True, kw_only=True)
class Pointwise(Rule):
    """w = weigh_key(x, distance, *, scalars): the weight of a key depends on its own score and distance only."""

    weigh_key: Step
    absolute: ClassVar[bool] = True
    single_pass: ClassVar[bool] = True

    def weigh(self, maps: Maps, visible: Visible, apply: Apply) -> Tensor:
        w: Tensor = apply(self.weigh_key, maps[0], visible.distance_BHTS)
        return w


@dataclass(frozen=True, kw_only=True)
class Counted(Rule):
    """w = weigh_key(x, distance, count, *, scalars), where `count` is the number of visible keys, at least 1.

    share(*, ...)   multiplies the same function of the second map, which is subtracted
    """

    weigh_key: Step
    share: Step | None = None
    single_pass: ClassVar[bool] = True

    @property
    def maps(self) -> int:
        return 1 if self.share is None else 2

    def weigh(self, maps: Maps, visible: Visible, apply: Apply) -> Tensor:
        count = visible_count(visible.count_BHT1, maps[0])
        w: Tensor = apply(self.weigh_key, maps[0], visible.distance_BHTS, count)
        if self.share is not None:
            w = w - apply(self.share) * apply(self.weigh_key, maps[1], visible.distance_BHTS, count)
        return w


@dataclass(frozen=True, kw_only=True)
class RunningSums(Rule):
    """w = top / (sum of bottom over the visible keys + rest), and 0 where the denominator is 0.

    `terms(x, m)` returns top and bottom, the terms of a key in the numerator and in the denominator; `rest(m)` is added
    to the denominator once. All are multiplied by exp(-m), m = max(max x, 0), so that none overflows. A running sum is
    rescaled by the same factor when m grows.
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
class StickBreaking(Rule):
    """w = taken(x) times the product of left(x) over the visible keys that are newer, left = 1 - taken.

    `shares(x, *, ...)` returns the logarithms of taken and left.
    own_takes    whether the key at the position of the query takes a share
    rest_to_own  whether that key gets the weight that no key has taken, besides its share
    """

    shares: Callable[..., tuple[Tensor, Tensor]]
    own_takes: bool = True
    rest_to_own: bool = False
    single_pass: ClassVar[bool] = True

    @property
    def ordered(self) -> bool:
        return True

    def _breaking(self, visible: Visible) -> Visible:
        """The keys that take a share."""
        if self.own_takes:
            return visible
        older = visible.keep_BHTS & (visible.distance_BHTS > 0)
        return Visible(older, visible.distance_BHTS, visible.in_order)

    def weigh(self, maps: Maps, visible: Visible, apply: Apply) -> Tensor:
        log_taken, log_left = apply(self.shares, maps[0])
        breaking = self._breaking(visible)
        keep = breaking.keep_BHTS
        w = torch.where(keep, torch.exp(log_taken + newer_sums(log_left, breaking)), 0.0)
        if self.rest_to_own:
            # The exponential of the sum of logarithms: one minus the sum of the weights would cancel.
            rest = torch.where(keep, log_left, 0.0).sum(-1, keepdim=True).exp()
            w = w + torch.where(visible.distance_BHTS == 0, rest, 0.0)
        return w


@dataclass(frozen=True, kw_only=True)
class Softmax(Rule):
    """w = gain (softmax(factor x + forget, with a sink) - share softmax(factor y) - level); all fields are optional.

    factor(count, *, ...)   multiplies the scores
    forget(*, ...)          logarithms of gates of the keys, B H S 1: a score is raised by those of all newer keys
    sink(*, ...)            logit of an additional key without a value
    share(*, ...)           multiplies the softmax of the second map, which is subtracted
    level(count, *, ...)    subtracted from the weight of every visible key
    gain(*, ...)            multiplies the result
    """

    factor: Step | None = None
    forget: Step | None = None
    sink: Number | None = None
    share: Step | None = None
    level: Step | None = None
    gain: Step | None = None
    single_pass: ClassVar[bool] = True

    @property
    def ordered(self) -> bool:
        return self.forget is not None

    @property
    def maps(self) -> int:
        return 1 if self.share is None else 2

    def weigh(self, maps: Maps, visible: Visible, apply: Apply) -> Tensor:
        keep, count = visible.keep_BHTS, visible_count(visible.count_BHT1, maps[0])
        if self.factor is not None:
            factor = apply(self.factor, count)
            maps = tuple(factor * x for x in maps)
        if self.forget is not None:
            decay = newer_sums(apply(self.forget).mT.expand_as(maps[0]), visible)
            maps = tuple(x + decay for x in maps)
        w = parts.softmax(maps[0], keep, sink=None if self.sink is None else apply(self.sink))
        if self.share is not None:
            w = w - apply(self.share) * parts.softmax(maps[1], keep)
        if self.level is not None:
            w = w - apply(self.level, count)
        return w if self.gain is None else apply(self.gain) * w


@dataclass(frozen=True, kw_only=True)
class Threshold(Rule):
    """w = max((order - 1) factor x - tau, 0)^(1 / (order - 1)), with the unique tau for which sum w = 1.

    `weigh_row(x, keep, *, ...)` solves for tau and defines its derivative. A backend that works in blocks needs only
    `order`, a constant or `order(*, ...)`, and `factor(count, *, ...)`, which multiplies the scores.
    """

    order: Number | float
    weigh_row: Step
    factor: Step | None = None

    def weigh(self, maps: Maps, visible: Visible, apply: Apply) -> Tensor:
        x = maps[0]
        if self.factor is not None:
            x = apply(self.factor, visible_count(visible.count_BHT1, x)) * x
        w: Tensor = apply(self.weigh_row, x, visible.keep_BHTS)
        return w


@dataclass(frozen=True, kw_only=True)
class TwoSoftmaxes(Rule):
    """w = combine(softmax(x), softmax(y), *, ...) for each key; `renormalise` divides by the sum (0 if that is 0)."""

    combine: Step
    renormalise: bool = False

    @property
    def maps(self) -> int:
        return 2

    def weigh(self, maps: Maps, visible: Visible, apply: Apply) -> Tensor:
        keep = visible.keep_BHTS
        w: Tensor = apply(self.combine, *(parts.softmax(x, keep) for x in maps))
        return parts.normalise(torch.where(keep, w, 0.0)) if self.renormalise else w


@dataclass(frozen=True, kw_only=True)
class Rectified(Rule):
    """w = max(0, the weight of a Softmax rule), whose gain must not be negative."""

    softmax: Softmax

    @property
    def maps(self) -> int:
        return self.softmax.maps

    @property
    def steps(self) -> tuple[Callable[..., object], ...]:
        return self.softmax.steps

    def weigh(self, maps: Maps, visible: Visible, apply: Apply) -> Tensor:
        return self.softmax.weigh(maps, visible, apply).clamp_min(0)


@dataclass(frozen=True, kw_only=True)
class AboveMean(Rule):
    """w = max(0, u - offset mean u)^power / sum, u = positive(factor x) > 0; 0 where the sum is 0.

    factor(count, *, ...)   multiplies the scores
    positive(x)             a positive function of a score
    offset(count, *, ...)   share of the row's mean that is subtracted
    power(*, ...)           at least 1
    """

    factor: Step
    positive: Step
    offset: Step
    power: Step

    def weigh(self, maps: Maps, visible: Visible, apply: Apply) -> Tensor:
        keep, count = visible.keep_BHTS, visible_count(visible.count_BHT1, maps[0])
        u = torch.where(keep, apply(self.positive, apply(self.factor, count) * maps[0]), 0.0)
        offset = apply(self.offset, count)
        # Differences to the maximum, so that equal numbers are equal to their mean. With an offset of 0, u itself.
        top = torch.where(offset > 0, parts.visible_max(u, keep), 0.0)
        above = u - top
        mean = torch.where(keep, above, 0.0).sum(-1, keepdim=True) / count
        excess = torch.where(keep, above + (1 - offset) * top - offset * mean, 0.0).clamp_min(0)
        largest = excess.detach().amax(-1, keepdim=True)
        # Divided by the largest before the power, which would underflow.
        return parts.normalise((excess / torch.where(largest > 0, largest, 1.0)) ** apply(self.power))


@dataclass(frozen=True, kw_only=True)
class RowMap(Rule):
    """w = weigh_row(x, [y,] keep[, distance], *, ...): an arbitrary function of the whole row.

    distances  pass the distances of the keys too: integers, 0 for the key at the position of the query. Keys come
               oldest first, unless a caller gives explicit positions in another order.
    """

    weigh_row: Step
    reads: int = 1
    distances: bool = False

    @property
    def maps(self) -> int:
        return self.reads

    def weigh(self, maps: Maps, visible: Visible, apply: Apply) -> Tensor:
        seen = (visible.keep_BHTS, visible.distance_BHTS) if self.distances else (visible.keep_BHTS,)
        w: Tensor = apply(self.weigh_row, *maps, *seen)
        return w


def newer_sums(x_BHTS: Tensor, visible: Visible) -> Tensor:
    """For each key, the sum of x over the visible keys that are newer. Of two at one position, the later is newer."""
    x = torch.where(visible.keep_BHTS, x_BHTS, 0.0)
    if visible.in_order:
        return _sums_after(x)
    order = visible.distance_BHTS.expand(x.shape).argsort(dim=-1, descending=True, stable=True)
    return torch.zeros_like(x).scatter(-1, order, _sums_after(x.gather(-1, order)))


def _sums_after(x: Tensor) -> Tensor:
    """Sums of the elements after each one. From the end, so that small sums are not differences of large ones."""
    return torch.nn.functional.pad(x[..., 1:], (0, 1)).flip(-1).cumsum(-1).flip(-1)


def visible_count(seen: Tensor, like: Tensor) -> Tensor:
    """n as a number one can divide by and take the logarithm of; a row that sees nothing counts as 1."""
    return seen.clamp_min(1).to(like.dtype)
