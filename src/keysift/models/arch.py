"""What a model is, apart from its vocabulary and its training length: what a run, a sweep and a preset choose.

Free of torch: the command line makes its flags from these fields. A model's whole config adds the rest (kinds.py).
"""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, Self

from keysift.core.config import config
from keysift.core.errors import ConfigError
from keysift.nn.scaling import NONE, read_scaling

PAPER_START = (0.5,)
_STDS = ("version3", "version1")


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
    """Channels of the residual stream."""
    key_heads: int | None = None
    """Heads of keys and values, shared by groups of query heads; as many as heads if left out."""
    mechanism: str | tuple[str, ...] = "softmax"
    """A registered mechanism, name+wrapper, or one for each layer."""
    position: Literal["rope", "none"] = "rope"
    """How queries and keys are turned by their positions."""
    rope_theta: float = 10_000.0
    """Base of RoPE's wavelengths."""
    rope_rates: str = NONE
    """How RoPE's rates are changed: none, linear:factor=4, llama3:..., yarn:... (nn/scaling.py)."""
    qk_norm: bool = False
    """RMSNorm with gain on queries and keys."""
    head_width: int | None = None
    """Channels of a head; width / heads if left out."""
    hidden_width: int | None = None
    """Channels inside SwiGLU; floor(8 width / 3) if left out."""
    norm_eps: float = 1e-5
    """What RMSNorm adds to the mean square."""
    final_gain: bool = False
    """A gain on the last RMSNorm too."""
    tied_embeddings: bool = True
    """Logits by the embedding table; --no-tied-embeddings gives them a matrix of their own."""
    attention_bias: Literal["none", "qkv", "qkvo"] = "none"
    """Which projections of attention have a bias."""
    initial_std: Literal["version3", "version1"] = "version3"
    """Standard deviations: sqrt(2/(5D)) and 2/(L sqrt D) for residual outputs, or 0.02 and 0.02/sqrt(2L)."""

    def __post_init__(self) -> None:
        _at_least_one(self, "depth", "heads", "width")
        for name in ("head_width", "hidden_width"):
            if getattr(self, name) is not None:
                _at_least_one(self, name)
        if self.head_width is None and self.width % self.heads:
            raise ConfigError(
                f"width must be a multiple of heads, got {self.width} and {self.heads}; or give head_width"
            )
        if not 0 < self.norm_eps < 1:
            raise ConfigError(f"norm_eps must lie in (0, 1), got {self.norm_eps:g}")
        if not 1 < self.rope_theta < math.inf:
            raise ConfigError(f"rope_theta must be above 1 and finite, got {self.rope_theta:g}")
        read_scaling(self.rope_rates)
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

    @property
    def per_head(self) -> int:
        """Channels of a head."""
        return self.head_width or self.width // self.heads

    @property
    def inner(self) -> int:
        """Channels inside SwiGLU."""
        return self.hidden_width or 8 * self.width // 3


Arch = MultiscreenArch | TransformerArch
ArchName = Literal["multiscreen", "transformer"]
# What training starts from where nothing is said.
DEFAULTS: dict[str, Arch] = {
    "multiscreen": MultiscreenArch.psi(8),
    "transformer": TransformerArch(depth=4, heads=4, width=128),
}


def arch_name(arch: Arch) -> str:
    return next(name for name, default in DEFAULTS.items() if isinstance(arch, type(default)))


def by_todays_names(told: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a Transformer saved when initial_std was called init and rope_rates rope_scaling, which is the name
    of a table in transformers; today's stay as they are."""
    renamed = {"rope_scaling": "rope_rates"} | ({"init": "initial_std"} if told.get("init") in _STDS else {})
    return {renamed.get(name, name): value for name, value in told.items()}


def field_names(arch: Arch) -> tuple[str, ...]:
    return tuple(field.name for field in fields(arch))
