"""Architecture of a model: every setting except the vocabulary and the training length.

This module does not import torch, because the command line generates its flags from these fields.
`registry.configure` adds the vocabulary and the training length and returns the full config of a model.
"""

import math
from dataclasses import fields
from typing import Any, Literal, Self, TypeVar

from keysift.core.config import config
from keysift.core.errors import ConfigError
from keysift.nn.position import LayerPosition, PositionKind, Shift
from keysift.nn.rope_scaling import NONE, parse_scaling

PAPER_ACCEPTANCE_START = (0.5,)
P = TypeVar("P", int, PositionKind)


def _at_least_one(value: Any, *names: str) -> None:
    for name in names:
        if getattr(value, name) < 1:
            raise ConfigError(f"{type(value).__name__}.{name} must be at least 1, got {getattr(value, name)}")


@config
class MultiscreenArch:
    """Sizes and ablations of a Multiscreen model. The defaults are the paper's."""

    depth: int
    """Number of layers."""
    tiles: int
    """Number of tiles per layer."""
    width: int
    """Channels of the residual stream."""
    key_width: int = 16
    """Channels of a tile's queries and keys."""
    value_width: int = 64
    """Channels of a tile's values."""
    position: Literal["mipe", "rope", "none"] = "mipe"
    """Rotary embedding of queries and keys."""
    norm: Literal["tanh", "none"] = "tanh"
    """Norm of a tile's output."""
    gate: bool = True
    """Multiply a tile's output by tanh(SiLU(x W_G))."""
    acceptance: Literal["learned"] | float = "learned"
    """Acceptance r of every tile: learned, or a number in (0, 1]."""
    acceptance_start: tuple[float, ...] = PAPER_ACCEPTANCE_START
    """Initial value of a learned r: one number for all tiles, or two for the first and the last tile, with the others
    spaced between them. The paper starts at 0.5. At a start near 1 (not in the paper) nearly every key is accepted."""
    window_threshold: float = 256.0
    """Windows from this length on are not rotated by MiPE, and the initial windows of a layer end there (w_th)."""

    def __post_init__(self) -> None:
        _at_least_one(self, "depth", "tiles", "width", "key_width", "value_width")
        if self.position == "mipe" and self.key_width < 2:
            raise ConfigError(f"key_width must be at least 2 for MiPE, got {self.key_width}; or set position to none")
        if not 1 <= self.window_threshold < math.inf:
            raise ConfigError(f"window_threshold must be finite and at least 1, got {self.window_threshold:g}")
        if self.acceptance != "learned" and not 0 < self.acceptance <= 1:
            raise ConfigError(f"a fixed acceptance must be a number in (0, 1], got {self.acceptance}")
        if len(self.acceptance_start) not in (1, 2) or not all(0 < r < 1 for r in self.acceptance_start):
            raise ConfigError(f"acceptance_start must be one or two numbers in (0, 1), got {self.acceptance_start}")
        if self.acceptance != "learned" and self.acceptance_start != PAPER_ACCEPTANCE_START:
            raise ConfigError("a fixed acceptance has no start; leave acceptance_start out")

    @classmethod
    def psi(cls, psi: int, **rest: Any) -> Self:
        """The paper's model family with a single size parameter: psi layers, psi tiles per layer, width psi^2."""
        return cls(depth=psi, tiles=psi, width=psi**2, **rest)


@config
class TransformerArch:
    """Sizes of a Transformer, and its attention mechanism."""

    depth: int
    """Number of layers."""
    heads: int
    """Heads of a softmax layer. Mechanisms with two key maps per head have half as many (nn/attention.py)."""
    width: int
    """Channels of the residual stream."""
    key_heads: int | None = None
    """Number of key and value heads, each shared by a group of query heads. Default: as many as heads."""
    mechanism: str | tuple[str, ...] = "softmax"
    """A registered mechanism, name+wrapper, or a list with one for each layer."""
    position: PositionKind | tuple[PositionKind, ...] = "rope"
    """Positions in a layer: rope, p_rope, alibi (a bias by distance) or none. A list is a pattern of layers, repeated
    until the last layer."""
    window: int | tuple[int, ...] = 0
    """Keys that a query sees, its own included; 0 is every key before it. A list is a pattern of layers, repeated until
    the last layer."""
    kept: int = 0
    """Keys at the first positions that windowed layers see as well, beyond their window."""
    rope_theta: float = 10_000.0
    """Base of RoPE's frequencies."""
    rope_share: float = 1.0
    """Share of the channels of a head that are rotated: rope rotates the first channels with frequencies of their own
    (partial RoPE), p_rope the pairs of highest frequency."""
    rope_rates: str = NONE
    """Scaling of RoPE's frequencies: none, linear:factor=4, llama3:..., yarn:... (nn/rope_scaling.py)."""
    qk_norm: bool = False
    """RMSNorm with gain on queries and keys."""
    qk_gains: Literal["shared", "per_head"] = "shared"
    """Gains of qk_norm: shared by all heads of a layer, or for each head (FoX Pro)."""
    shift: Shift = "none"
    """Mix each key, value or both with that of the previous token, by a share that the token computes for each head
    (FoX Pro)."""
    head_width: int | None = None
    """Channels of a head. Default: width / heads."""
    hidden_width: int | None = None
    """Hidden channels of SwiGLU. Default: floor(8 width / 3)."""
    norm_eps: float = 1e-5
    """Epsilon of RMSNorm."""
    final_gain: bool = False
    """Learn a gain in the last RMSNorm too."""
    tied_embeddings: bool = True
    """Compute logits with the embedding table; --no-tied-embeddings adds an output matrix."""
    attention_bias: Literal["none", "qkv", "qkvo"] = "none"
    """Attention projections with a bias."""
    initial_std: Literal["version3", "version1"] = "version3"
    """Standard deviation of initial weights, as in version 3 or version 1 of the paper, for width D and depth L.
    version3: sqrt(2/(5D)), and 2/(L sqrt D) for matrices that write to the residual stream. version1: 0.02, and
    0.02/sqrt(2L) for those matrices."""

    def __post_init__(self) -> None:
        _at_least_one(self, "depth", "heads", "width")
        for name in ("head_width", "hidden_width"):
            if getattr(self, name) is not None:
                _at_least_one(self, name)
        if self.head_width is None and self.width % self.heads:
            raise ConfigError(
                f"width must be a multiple of heads, got {self.width} and {self.heads}; or give head_width"
            )
        if not 0 < self.norm_eps <= 1:
            raise ConfigError(f"norm_eps must lie in (0, 1], got {self.norm_eps:g}")
        _check_positions(self)
        if self.qk_gains == "per_head" and not self.qk_norm:
            raise ConfigError(
                "qk_gains is per_head, and there is no norm that they scale; set qk_norm, or leave them out"
            )
        if not 1 < self.rope_theta < math.inf:
            raise ConfigError(f"rope_theta must be above 1 and finite, got {self.rope_theta:g}")
        parse_scaling(self.rope_rates)
        if self.key_heads is not None and (self.key_heads < 1 or self.heads % self.key_heads):
            raise ConfigError(f"key_heads must divide heads, got {self.key_heads} and {self.heads}")
        if not isinstance(self.mechanism, str) and len(self.mechanism) != self.depth:
            raise ConfigError(
                f"mechanism lists {len(self.mechanism)} names and depth is {self.depth}; "
                f"give one name, or one per layer"
            )

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """Name of the mechanism of each layer."""
        return (self.mechanism,) * self.depth if isinstance(self.mechanism, str) else self.mechanism

    def layer_position(self, layer: int) -> LayerPosition:
        """How this layer sees positions."""
        kinds, windows = _pattern(self.position), _pattern(self.window)
        window = windows[layer % len(windows)]
        return LayerPosition(
            kind=kinds[layer % len(kinds)],
            theta=self.rope_theta,
            scaling=self.rope_rates,
            share=self.rope_share,
            window=window or None,
            kept=self.kept if window else 0,
            shift=self.shift,
        )

    @property
    def resolved_head_width(self) -> int:
        """Channels of a head."""
        return self.head_width or self.width // self.heads

    @property
    def resolved_hidden_width(self) -> int:
        """Hidden channels of SwiGLU."""
        return self.hidden_width or 8 * self.width // 3


def _pattern(value: P | tuple[P, ...]) -> tuple[P, ...]:
    return value if isinstance(value, tuple) else (value,)


def _check_positions(arch: TransformerArch) -> None:
    """Raise ConfigError for a pattern of positions that no layer could have."""
    for name, pattern in (("position", _pattern(arch.position)), ("window", _pattern(arch.window))):
        if not 1 <= len(pattern) <= arch.depth:
            raise ConfigError(
                f"{name} lists {len(pattern)} layers and depth is {arch.depth}; give one value, or a pattern of at "
                f"most one for each layer, which is repeated"
            )
    if not 0 < arch.rope_share <= 1:
        raise ConfigError(f"rope_share must lie in (0, 1], got {arch.rope_share:g}")
    kinds = set(_pattern(arch.position))
    if arch.rope_share < 1 and not kinds & {"rope", "p_rope"}:
        raise ConfigError(f"rope_share is {arch.rope_share:g}, and no layer has RoPE; leave it out")
    if arch.rope_share == 1 and "p_rope" in kinds:
        raise ConfigError("p_rope rotates a share of the pairs; give a rope_share below 1, or use rope")
    if any(window < 0 for window in _pattern(arch.window)):
        raise ConfigError(f"window must be at least 1, or 0 for none, got {arch.window}")
    if arch.kept < 0 or (arch.kept and not any(_pattern(arch.window))):
        raise ConfigError(
            f"kept is the number of keys beside a window, at least 0, got {arch.kept} and a window of {arch.window}"
        )


Arch = MultiscreenArch | TransformerArch
ArchName = Literal["multiscreen", "transformer"]
# The architectures that training uses by default.
DEFAULT_ARCHS: dict[str, Arch] = {
    "multiscreen": MultiscreenArch.psi(8),
    "transformer": TransformerArch(depth=4, heads=4, width=128),
}


def arch_name(arch: Arch) -> str:
    """Name of the architecture: multiscreen or transformer."""
    return next(name for name, default in DEFAULT_ARCHS.items() if isinstance(arch, type(default)))


def field_names(arch: Arch) -> tuple[str, ...]:
    """Names of the fields of an architecture."""
    return tuple(field.name for field in fields(arch))
