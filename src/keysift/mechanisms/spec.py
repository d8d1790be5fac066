"""What a mechanism is: dense mathematics, learned scalars, and promises that the tests prove or refute.

Reading order of one call, each step a field of `Mechanism`:

    prepare   q, k, v at integer positions -> q, k, v     (screening: unit length, rotation; a value gate)
    scores    scale * q k^T + bias                        (one map, or two for the differential family)
    rule      scores -> weights                           (the mechanism proper; rules.py)
    weights @ v
    finish    output -> output                            (a norm or a gate)

Letters: B batch, H heads, T queries, S keys, K key width, V value width.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import Tensor

from keysift.core.errors import ConfigError, RangeError
from keysift.core.registry import Registry
from keysift.mechanisms.rules import Rule


class Promise(Enum):
    """What a mechanism may promise. The value is the sentence shown to people."""

    SUMS_TO_ONE = "the weights of a row sum to one"
    NONNEGATIVE = "no weight is negative"
    BOUNDED = "no weight grows without bound as scores grow"
    EXACT_ZERO = "a visible key can get exactly zero, on an open set of inputs"
    ABSOLUTE = "each key is judged alone: its weight does not move when other keys come or go"
    REFUSED_INERT = "a key can be refused, and a refused key changes no other weight"
    CONVEX_HULL = "the output lies in the convex hull of the values"
    HULL_WITH_ZERO = "the output lies in the convex hull of the values and zero"
    REFUSES_EXACTLY = "everything can be refused: output exactly zero, on an open set of inputs"
    REFUSES_IN_LIMIT = "everything can be refused at least in the limit: output as near zero as you like"
    SHIFT_INVARIANT = "adding one number to every score of a row changes nothing"
    SCALE_INVARIANT = "rescaling queries and keys by positive factors changes nothing"
    CAUSAL = "a later key changes no earlier output"
    SINGLE_PASS = "one pass over the keys suffices, with a fixed number of accumulators"
    BLOCKS_SKIPPABLE = "the values of a whole block of visible keys can be left unread, exactly"

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", " ")


class Per(Enum):
    """What one number of a scalar belongs to; the value names the axes of the tensor a caller passes (G: key heads)."""

    LAYER = ""
    HEAD = "H"
    CHANNEL = "V"
    HEAD_CHANNEL = "HV"
    QUERY = "BHT"
    QUERY_CHANNEL = "BHTV"
    KEY = "BGS"
    KEY_CHANNEL = "BGSV"

    @property
    def projected(self) -> bool:
        """Computed from the token stream by the layer, rather than stored as a parameter."""
        return "B" in self.value


# What a lone call assumes of the context a model is trained at. A constant: a default that followed the number of keys
# would make one decode step disagree with the next.
ASSUMED_CONTEXT = 1024


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where a mechanism stands in a model: what initial values may depend on."""

    heads: int = 1
    key_width: int = 1
    value_width: int = 1
    context: int = ASSUMED_CONTEXT
    layer: int = 0
    depth: int = 1


def identity(raw: Tensor, site: Site) -> Tensor:
    return raw


def sigmoid(raw: Tensor, site: Site) -> Tensor:
    return raw.sigmoid()


@dataclass(frozen=True)
class Constant:
    """The same initial value wherever the mechanism stands. A class rather than a closure, so that specs pickle."""

    value: float

    def __call__(self, site: Site, generator: torch.Generator | None = None) -> Tensor:
        return torch.tensor(self.value, dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """A number the mechanism needs besides q, k and v.

    `init` gives the raw parameter in fp64 (without a generator: its mean), `link` turns it into the value the
    mathematics uses; a layer keeps the raw one in its own type.
    For projected scalars the raw number is the layer's projection and `init` is its mean, zero.
    """

    name: str
    meaning: str
    per: Per
    init: Callable[[Site, torch.Generator | None], Tensor] = Constant(0.0)
    link: Callable[[Tensor, Site], Tensor] = identity
    above: float = -float("inf")
    up_to: float = float("inf")
    above_allowed: bool = False
    learned: bool = True
    follows: str | None = None  # takes the value of this scalar unless given its own
    probes: tuple[float, ...]

    def default(self, site: Site) -> Tensor:
        return self.link(self.init(site, None), site)

    def check(self, mechanism: str, value: Tensor) -> None:
        right = (value >= self.above if self.above_allowed else value > self.above) & (value <= self.up_to)
        if self.per.projected:
            right = right | value.isnan()  # the token's own number is lost, and with it the rows that see it
        if not bool(right.all()):
            wrong = value.detach().flatten()[~right.flatten()][0].item()
            raise RangeError(
                f"{mechanism} needs {self.name} {self._range()}, got {wrong:g}; {self.name} is {self.meaning}"
            )

    def _range(self) -> str:
        low = f"{'>=' if self.above_allowed else '>'} {self.above:g}"
        return low if self.up_to == float("inf") else f"{low} and <= {self.up_to:g}"


Prepare = Callable[..., tuple[Tensor, Tensor, Tensor]]
Finish = Callable[..., Tensor]


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """One way to turn scores into weights, with everything a caller needs to know about it.

    The functions of the rule, each `prepare(q, k, v, at, key_at, *, ...)` and each `finish(out, *, ...)` name the
    scalars they need as keyword-only parameters and get exactly those. Steps of a tuple run in order. Every function is
    one that pickle finds by name (or a small frozen class): models are copied and saved with their specs.
    """

    name: str
    title: str
    source: str
    page: str
    formula: str
    rule: Rule
    holds: frozenset[Promise]
    notes: Mapping[Promise, str] = field(default_factory=dict)
    scalars: tuple[Scalar, ...] = ()
    key_maps: int = 1
    cosine_scores: bool = False
    looks_back_only: bool = False
    band: str | None = None  # the scalar that bounds the distance at which a weight can differ from zero
    prepare: tuple[Prepare, ...] = ()
    finish: tuple[Finish, ...] = ()
    flat: frozenset[str] = frozenset()  # differentiable by type, but with zero gradient everywhere
    wants: Mapping[Callable[..., object], tuple[str, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        steps = (*self.rule.steps, *self.prepare, *self.finish)
        object.__setattr__(self, "wants", {step: _keyword_only(step) for step in steps})
        known = {scalar.name for scalar in self.scalars}
        for step in steps:
            unknown = set(self.wants[step]) - known
            if unknown:
                raise ConfigError(
                    f"{self.name}: {getattr(step, '__name__', step)} asks for {', '.join(sorted(unknown))}, "
                    f"which its scalars do not list; add a Scalar for each"
                )

    @property
    def maps(self) -> int:
        """How many score maps a head reads."""
        return self.rule.maps

    @property
    def takes_bias(self) -> bool:
        """An additive bias has a meaning where the score is an unbounded logit."""
        return not self.cosine_scores

    @property
    def differentiable(self) -> tuple[str, ...]:
        return ("q", "k", "v", *(scalar.name for scalar in self.scalars))

    def scalar(self, name: str) -> Scalar:
        return next(scalar for scalar in self.scalars if scalar.name == name)


def _keyword_only(step: Callable[..., object]) -> tuple[str, ...]:
    parameters = inspect.signature(step).parameters.values()
    return tuple(p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)


MECHANISMS: Registry[Mechanism] = Registry("mechanism")
WRAPPERS: Registry[Callable[[Mechanism], Mechanism]] = Registry("wrapper")


def register(mechanism: Mechanism) -> Mechanism:
    return MECHANISMS.add(mechanism.name, mechanism)
