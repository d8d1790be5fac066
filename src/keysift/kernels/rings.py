"""Keys and values of a cache where they lie, for a kernel that reads them there instead of from a copy.

Letters: B batch, G key heads, R rows of all rings together, K key width, V value width.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Rings:
    """Head g owns ring_G2[g, 1] rows from ring_G2[g, 0] on, and key j of batch row b is the one at
    (first[b] + j) modulo that number. A key that its head has forgotten gives a newer one."""

    k_BRK: Tensor
    v_BRV: Tensor
    ring_G2: Tensor  # int64, on the CPU
    first: list[int]
    keys: int
