"""How a layer sees positions: the rotation of its queries and keys, and the keys within its reach.

    position = LayerPosition(kind="rope", window=256, kept=4)

A Transformer chooses one for each layer at construction. Everything that depends on positions is decided here, on
integers; the layer's forward pass is the same for all of them. Free of torch, as the command line reads it.
"""

from dataclasses import dataclass
from typing import Literal

from keysift.nn.rope_scaling import NONE

PositionKind = Literal["rope", "p_rope", "alibi", "none"]


@dataclass(frozen=True, kw_only=True)
class LayerPosition:
    """Positions of one layer.

    kind     rope and p_rope rotate queries and keys; alibi subtracts a multiple of the distance from the scores; none
             does neither
    share    of the channels that are rotated: by rope the first channels, by p_rope the pairs of highest frequency
    window   a query sees its own key and the window - 1 keys before it; None: every key before it
    kept     keys at positions below this number stay visible beyond the window
    """

    kind: PositionKind = "rope"
    theta: float = 10_000.0
    scaling: str = NONE
    share: float = 1.0
    window: int | None = None
    kept: int = 0


EVERY_KEY = LayerPosition()
