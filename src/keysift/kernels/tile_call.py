"""TileCall: the arguments of a layer's gated tiles, as one operator reads them.

Letters: B batch, H tiles, T queries, S keys, X channels, K key width, V value width.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from keysift.kernels.positions import Positions
from keysift.mechanisms.spec import Mechanism


@dataclass(frozen=True, kw_only=True, eq=False)
class TileCall:
    """Gated tiles of one layer: out = u * tanh(SiLU(g)) * scale, where u is the output of the mechanism.

    projected  B S X: the channels of q (H K), k (H K), v (H V) and, if `gated`, g (H V), as a projection writes them
    scalars    of the mechanism, aligned as in `Call`
    scale      H
    positions  of S keys and of T queries, which are the last T tokens; earlier tokens are keys only (no gradients then)
    groups     handle of kernels/cpu/key_groups.py, for one row without gradients whose keys are all in `projected`;
               None: every key is scanned
    """

    mechanism: Mechanism
    projected: Tensor
    heads: int
    key_width: int
    gated: bool
    scalars: Mapping[str, Tensor]
    scale: Tensor
    positions: Positions
    groups: int | None = None

    @property
    def value_width(self) -> int:
        per_head = self.projected.shape[2] // self.heads - 2 * self.key_width
        return per_head // 2 if self.gated else per_head
