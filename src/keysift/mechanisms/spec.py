"""The spec of a mechanism: its dense definition, its scalars, and promises that tests confirm or refute.

Steps of a call, each a field of `Mechanism`:

    prepare   q, k, v at integer positions -> q, k, v     (screening: unit length, rotation; a value gate)
    scores    scale * q k^T + bias                        (one map, or two for the differential family)
    rule      scores -> weights                           (the mechanism proper; rules.py)
    weights @ v                                           (and the weight that the keys leave, times a learned value)
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
    """Properties that a mechanism may promise. The value is the sentence shown to users."""

    SUMS_TO_ONE = "the weights of a row sum to one"
    NONNEGATIVE = "no weight is negative"
    BOUNDED = "no weight grows without bound as scores grow"
    EXACT_ZERO = "a visible key can have weight exactly zero, on an open set of inputs"
    ABSOLUTE = "the weight of a key does not change when other keys are added or removed"
    REFUSED_INERT = "a key can be refused, and a refused key changes no other weight"
    CONVEX_HULL = "the output lies in the convex hull of the values"
    HULL_WITH_ZERO = "the output lies in the convex hull of the values and zero"
    REFUSES_EXACTLY = "all keys can be refused: the output is exactly zero, on an open set of inputs"
    REFUSES_IN_LIMIT = "all keys can be refused at least in the limit: the output can be arbitrarily close to zero"
    SHIFT_INVARIANT = "adding a constant to all scores of a row changes nothing"
    SCALE_INVARIANT = "rescaling queries and keys by positive factors changes nothing"
    CAUSAL = "a later key does not change an earlier output"
    SINGLE_PASS = "one pass over the keys suffices, with a fixed number of accumulators"
    BLOCKS_SKIPPABLE = "the values of a whole block of visible keys can be skipped without changing the output"

    @property
    def label(self) -> str:
        """Short name for tables."""
        return self.name.lower().replace("_", " ")


class Per(Enum):
    """Granularity of a scalar. The value lists the axes of the tensor that a caller passes (G: key heads)."""

    LAYER = ""
    HEAD = "H"
    CHANNEL = "V"
    HEAD_CHANNEL = "HV"
    QUERY = "BHT"
    QUERY_CHANNEL = "BHTV"
    KEY = "BGS"
    KEY_CHANNEL = "BGSV"
    HEAD_KEY = "BHS"

    @property
    def of_key(self) -> bool:
        """Whether there is a value for each key, which a cache stores."""
        return "S" in self.value

    @property
    def projected(self) -> bool:
        """Whether the layer computes the scalar from its input, rather than storing a parameter."""
        return "B" in self.value


# Training length assumed by a call outside a model. It is a constant: if it followed the number of keys, the weights
# would change from one decode step to the next.
ASSUMED_CONTEXT = 1024


@dataclass(frozen=True, kw_only=True)
class Site:
    """The place of a mechanism in a model. Initial values of scalars may depend on it."""

    heads: int = 1
    key_width: int = 1
    value_width: int = 1
    context: int = ASSUMED_CONTEXT
    layer: int = 0
    depth: int = 1


def identity(raw: Tensor, site: Site) -> Tensor:
    """Link function: the raw number itself."""
    return raw


def sigmoid(raw: Tensor, site: Site) -> Tensor:
    """Link function: the sigmoid of the raw number."""
    return raw.sigmoid()


def softplus(raw: Tensor, site: Site) -> Tensor:
    """Link function: log(1 + exp(raw)), which is positive."""
    return torch.nn.functional.softplus(raw)


@dataclass(frozen=True)
class Constant:
    """Initial value that does not depend on the site. A class rather than a closure, so that specs can be pickled."""

    value: float

    def __call__(self, site: Site, generator: torch.Generator | None = None) -> Tensor:
        return torch.tensor(self.value, dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """A parameter of a mechanism besides q, k and v.

    `init` returns the initial raw parameter in fp64: a draw from the generator, or the mean without a generator. `link`
    maps the raw parameter to the value that the definition uses. A layer stores the raw parameter in its own dtype. The
    raw value of a projected scalar is a projection of the layer's input, with mean zero, plus with `bias` a parameter:
    one number for each head (and channel), for which `init` returns the first values or one for all of them.
    docs/mechanisms/adding.md explains every field.
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
    bias: bool = False  # of a projected scalar
    follows: str | None = None  # defaults to the value of this other scalar
    probes: tuple[float, ...]  # values at which promises and backends are tested

    def __post_init__(self) -> None:
        if self.bias and not self.per.projected:
            raise ConfigError(
                f"{self.name} is one number per {self.per.name.lower()}, and only a scalar projected from tokens takes "
                f"a bias; leave bias out, and give its first value as init"
            )

    def default(self, site: Site) -> Tensor:
        """The value at initialisation. That of a projected scalar is the value for a layer input of zeros."""
        value = self.link(self.init(site, None), site)
        return value.unsqueeze(1) if self.per.projected and value.ndim else value  # one per head, for every token

    def check(self, mechanism: str, value: Tensor) -> None:
        """Raise RangeError if a value is out of range."""
        if value.numel() == 1 and not self.per.projected:  # comparing one number costs less than four operations
            number = value.item()
            if (number > self.above or (self.above_allowed and number == self.above)) and number <= self.up_to:
                return
        valid = (value >= self.above if self.above_allowed else value > self.above) & (value <= self.up_to)
        if self.per.projected:
            valid = valid | value.isnan()  # not an error: it affects only queries that attend to the token
        if not bool(valid.all()):
            wrong = value.detach().flatten()[~valid.flatten()][0].item()
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
    """A rule that turns scores into weights, with its scalars, promises and documentation.

    The functions of the rule, every `prepare(q, k, v, at, key_at, *, ...)` and every `finish(out, *, ...)` receive the
    scalars that they name as keyword-only parameters. The functions of `prepare` run in order, and so do those of
    `finish`. Functions must be importable by name, or instances of small frozen classes, because models are copied and
    pickled with their specs. docs/mechanisms/adding.md explains every field.
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
    causal_only: bool = False
    own_key: bool = True  # whether a query sees the key at its own position
    window_scalar: str | None = None  # the scalar that bounds the distance at which a weight can differ from zero
    prepare: tuple[Prepare, ...] = ()
    finish: tuple[Finish, ...] = ()
    rest_value: str | None = None  # the scalar that the output adds (1 - sum w) times
    flat: frozenset[str] = frozenset()  # inputs whose gradient is zero everywhere
    # For each step, the scalars it takes as keyword-only parameters.
    scalar_names: Mapping[Callable[..., object], tuple[str, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        steps = (*self.rule.steps, *self.prepare, *self.finish)
        if not self.own_key and not self.causal_only:
            raise ConfigError(f"{self.name}: without its own key a query sees earlier keys only; set causal_only=True")
        object.__setattr__(self, "scalar_names", {step: _keyword_only(step) for step in steps})
        known = {scalar.name for scalar in self.scalars}
        for step in steps:
            unknown = set(self.scalar_names[step]) - known
            if unknown:
                raise ConfigError(
                    f"{self.name}: {getattr(step, '__name__', step)} needs {', '.join(sorted(unknown))}, "
                    f"which the mechanism does not list in scalars; add a Scalar for each"
                )

    @property
    def maps(self) -> int:
        """Number of score maps per head."""
        return self.rule.maps

    @property
    def takes_bias(self) -> bool:
        """Whether an additive bias is allowed: only if scores are unbounded logits."""
        return not self.cosine_scores

    @property
    def differentiable(self) -> tuple[str, ...]:
        """Names of the inputs with a gradient."""
        return ("q", "k", "v", *(scalar.name for scalar in self.scalars))

    def scalar(self, name: str) -> Scalar:
        """The scalar of this name."""
        return next(scalar for scalar in self.scalars if scalar.name == name)


def _keyword_only(step: Callable[..., object]) -> tuple[str, ...]:
    parameters = inspect.signature(step).parameters.values()
    return tuple(p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)


MECHANISMS: Registry[Mechanism] = Registry("mechanism")
WRAPPERS: Registry[Callable[[Mechanism], Mechanism]] = Registry("wrapper")


def register(mechanism: Mechanism) -> Mechanism:
    """Add a mechanism to the registry and return it."""
    return MECHANISMS.add(mechanism.name, mechanism)
