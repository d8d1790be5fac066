"""Ring buffers of a key-value cache, as backends that read the cache in place receive them.

Letters: B batch, G key heads, R slots of all rings together, K key width, V value width.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class RingBuffers:
    """Keys and values of all heads in two tensors, one ring of slots per head.

    The ring of head g has ring_G2[g, 1] slots, starting at slot ring_G2[g, 0]. Key j of batch row b is in slot
    (first[b] + j) modulo the ring's length. A key that a short ring has overwritten reads as a newer one; the caller's
    window gives it weight zero.
    """

    k_BRK: Tensor
    v_BRV: Tensor
    ring_G2: Tensor  # int64, on the CPU
    first: list[int]
    keys: int
