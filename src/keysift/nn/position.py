"""How a layer sees positions: the rotation of its queries and keys, and its attention mask.

    position = LayerPosition(kind="rope", window=256, kept=4)

A Transformer chooses one for each layer at construction. Everything that depends on positions is decided here, on
integers; the layer's forward pass is the same for all of them. Free of torch, as the command line reads it.
"""

from dataclasses import dataclass
from typing import Literal

from keysift.nn.rope_scaling import NONE

PositionKind = Literal["rope", "p_rope", "alibi", "none"]
Shift = Literal["none", "keys", "values", "both"]


@dataclass(frozen=True, kw_only=True)
class LayerPosition:
    """Positions of one layer.

    kind     rope and p_rope rotate queries and keys; alibi subtracts a multiple of the distance from the scores; none
             does neither
    share    of the channels that are rotated: by rope the first channels, by p_rope the pairs of highest frequency
    window   a query sees its own key and the window - 1 keys before it; None: every key before it
    kept     keys at positions below this number stay visible beyond the window
    shift    what is mixed with that of the previous token (nn/token_shift.py)
    """

    kind: PositionKind = "rope"
    theta: float = 10_000.0
    scaling: str = NONE
    share: float = 1.0
    window: int | None = None
    kept: int = 0
    shift: Shift = "none"

    @property
    def reads_cache_in_place(self) -> bool:
        """Whether kernels that read the rings of a cache know every visible key."""
        return self.window is None and self.kind != "alibi"

    def slopes(self, heads: int) -> tuple[float, ...] | None:
        """ALiBi slope of each head: what it subtracts from a score per position of distance. None without ALiBi."""
        return alibi_slopes(heads) if self.kind == "alibi" else None


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """Slopes of ALiBi (arXiv:2108.12409): 2^(-8h/H) for h = 1 to H, if H is a power of two.

    Otherwise those of the largest power of two P below H, followed by every second slope of 2P heads.
    """
    power = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * head / power) for head in range(1, power + 1)]
    between = [2 ** (-8 * head / (2 * power)) for head in range(1, 2 * power + 1, 2)]
    return tuple((slopes + between)[:heads])


EVERY_KEY = LayerPosition()
