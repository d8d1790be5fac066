"""What a model is, apart from its vocabulary and its training length: what a run, a sweep and a preset choose.

Free of torch: the command line makes its flags from these fields. A model's whole config adds the rest (kinds.py).
"""

from dataclasses import fields
from typing import Any, Literal, Self

from keysift.core.config import config
from keysift.core.errors import ConfigError

PAPER_START = (0.5,)


def _at_least_one(value: Any, *names: str) -> None:
    for name in names:
        if getattr(value, name) < 1:
            raise ConfigError(f"{type(value).__name__}.{name} must be at least 1, got {getattr(value, name)}")


@config
class MultiscreenArch:
    """Sizes of a Multiscreen and its ablations; the defaults are the paper's."""

    depth: int
    """Layers."""
    tiles: int
    """Tiles of each layer."""
    width: int
    """Channels of the residual stream."""
    key_width: int = 16
    """Channels of a tile's queries and keys."""
    value_width: int = 64
    """Channels of a tile's values."""
    position: Literal["mipe", "rope", "none"] = "mipe"
    """How queries and keys are turned by their positions."""
    norm: Literal["tanh", "none"] = "tanh"
    """What bounds the length of a tile's output."""
    gate: bool = True
    """Whether tanh(SiLU(x W_G)) multiplies a tile's output."""
    acceptance: Literal["learned"] | float = "learned"
    """The acceptance width r of every tile: learned, or one number in (0, 1]."""
    acceptance_start: tuple[float, ...] = PAPER_START
    """Where a learned r starts: one number for every tile, or two for the first tile and the last, the others between.
    The paper starts at 0.5; near 1 every key is seen at first, which is our own change."""

    def __post_init__(self) -> None:
        _at_least_one(self, "depth", "tiles", "width", "key_width", "value_width")
        if self.position == "mipe" and self.key_width < 2:
            raise ConfigError(f"MiPE turns the first two of a key's channels, got key_width={self.key_width}")
        if self.acceptance != "learned" and not 0 < self.acceptance <= 1:
            raise ConfigError(f"a fixed acceptance is a number in (0, 1], got {self.acceptance}")
        if len(self.acceptance_start) not in (1, 2) or not all(0 < r < 1 for r in self.acceptance_start):
            raise ConfigError(f"acceptance_start is one or two numbers in (0, 1), got {self.acceptance_start}")
        if self.acceptance != "learned" and self.acceptance_start != PAPER_START:
            raise ConfigError("a fixed acceptance has no start; leave acceptance_start out")

    @classmethod
    def psi(cls, psi: int, **rest: Any) -> Self:
        """The paper's one-dial family: layers = tiles = psi, width = psi^2."""
        return cls(depth=psi, tiles=psi, width=psi**2, **rest)


@config
class TransformerArch:
    """Sizes of a Transformer and the mechanism that reads."""

    depth: int
    """Layers."""
    heads: int
    """Heads of a softmax layer; mechanisms with several key maps fold them (see nn/attention.py)."""
    width: int
    """Channels of the residual stream; a head has width / heads of them."""
    key_heads: int | None = None
    """Heads of keys and values, shared by groups of query heads; as many as heads if left out."""
    mechanism: str | tuple[str, ...] = "softmax"
    """A registered mechanism, name+wrapper, or one for each layer."""
    position: Literal["rope", "none"] = "rope"
    """How queries and keys are turned by their positions."""
    rope_theta: float = 10_000.0
    """Base of RoPE's wavelengths."""
    qk_norm: bool = False
    """RMSNorm with gain on queries and keys."""
    init: Literal["version3", "version1"] = "version3"
    """Standard deviations: sqrt(2/(5D)) and 2/(L sqrt D) for residual outputs, or 0.02 and 0.02/sqrt(2L)."""

    def __post_init__(self) -> None:
        _at_least_one(self, "depth", "heads", "width")
        if self.width % self.heads:
            raise ConfigError(f"width must be a multiple of heads, got {self.width} and {self.heads}")
        if self.key_heads is not None and (self.key_heads < 1 or self.heads % self.key_heads):
            raise ConfigError(f"key_heads must divide heads, got {self.key_heads} and {self.heads}")
        if not isinstance(self.mechanism, str) and len(self.mechanism) != self.depth:
            raise ConfigError(
                f"mechanism names {len(self.mechanism)} layers and depth is {self.depth}; "
                f"give one name, or one per layer"
            )

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """One name for each layer."""
        return (self.mechanism,) * self.depth if isinstance(self.mechanism, str) else self.mechanism


Arch = MultiscreenArch | TransformerArch
ArchName = Literal["multiscreen", "transformer"]
# What training starts from where nothing is said.
DEFAULTS: dict[str, Arch] = {
    "multiscreen": MultiscreenArch.psi(8),
    "transformer": TransformerArch(depth=4, heads=4, width=128),
}


def arch_name(arch: Arch) -> str:
    return next(name for name, default in DEFAULTS.items() if isinstance(arch, type(default)))


def field_names(arch: Arch) -> tuple[str, ...]:
    return tuple(field.name for field in fields(arch))
