"""The backend protocol: what `attend` needs to know about an implementation."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from torch import Tensor

from keysift.kernels.call import Call
from keysift.kernels.positions import Positions
from keysift.kernels.ring_buffers import RingBuffers
from keysift.kernels.scalars import Scalars
from keysift.mechanisms.spec import Mechanism


class Code(Enum):
    """Why a backend cannot run on this machine, for programs; `Unavailable` adds the sentence for people."""

    NOT_BUILT = "not built"
    DOES_NOT_LOAD = "does not load"
    STALE = "stale"
    ISA_UNKNOWN = "unknown instruction set"
    ISA_NOT_HERE = "instruction set not on this machine"
    NO_TRITON = "triton is not installed"
    NO_DEVICE = "no device"


@dataclass(frozen=True)
class Unavailable:
    """The reason why a backend cannot run on this machine."""

    code: Code
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class CacheReader:
    """Attention over the ring buffers of a cache, without copying keys and values.

    supports  whether `run` can take such queries and scalars
    run       the output for these queries, equal to that of `attend` on the cached keys in order
    """

    supports: Callable[[Mechanism, Tensor, Scalars], bool]
    run: Callable[[Mechanism, Tensor, RingBuffers, Scalars, Positions], Tensor]


@dataclass(frozen=True, kw_only=True)
class Backend:
    """One implementation of attention.

    run                 output, and weights for backends that form them
    unavailable         why it cannot run on this machine, or None
    declines            why it cannot run a call, or None; the second argument is return_weights
    blocked             works in blocks and recomputes them in the backward pass; `attend` skips it for small calls
    min_queries         `attend` skips it for fewer queries, which would not fill a block
    small_forward       although blocked, `attend` uses it for small calls without gradients
    detects_non_finite  whether it applies the rule for NaN and inf to this call itself (see masked_values)
    cache_reader        for backends that can read a cache in place
    """

    name: str
    about: str
    run: Callable[[Call], tuple[Tensor, Tensor | None]]
    unavailable: Callable[[], Unavailable | None] = lambda: None
    declines: Callable[[Call, bool], str | None] = lambda call, return_weights: None
    blocked: bool = False
    small_forward: bool = False
    min_queries: int = 0
    detects_non_finite: Callable[[Call], bool] = lambda call: False
    cache_reader: CacheReader | None = None
