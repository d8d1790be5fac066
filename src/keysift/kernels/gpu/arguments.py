"""Arguments of the Triton kernels, in groups. Fields hold tensors and integers, or `tl.constexpr` for sizes.

Triton specialises kernels on the integers in a tuple, so lengths are not in one: a kernel serves every length.
"""

from typing import Any, NamedTuple

from torch import Tensor


class View(NamedTuple):
    """A B H T W tensor whose last axis is contiguous, and its strides in elements."""

    data: Any
    batch: Any
    head: Any
    row: Any

    @classmethod
    def of(cls, x: Tensor) -> "View":
        return cls(x, *x.stride()[:3])


class Tiles(NamedTuple):
    """Scalars of the tiles, one per tile, and the window from which on none is rotated."""

    window: Any
    effective_window: Any
    acceptance: Any
    w_th: Any


class Saved(NamedTuple):
    """What the backward pass needs: |h| and, where it cannot be recovered from u, h. Contiguous, fp32."""

    norm: Any
    h: Any


class Rows(NamedTuple):
    """What is computed once per row, contiguous, fp32: 1 / |x| of every query, key and value, NaN where a row is not
    finite; and the rotated channels of the unit keys, 2 B H S."""

    q: Any
    k: Any
    v: Any
    rotated: Any


class Shape(NamedTuple):
    """Constants of a compiled kernel: widths, widths padded to powers of two, block sizes, query heads per key head,
    the precision of fp32 products, and the steps of screening that it computes."""

    K: Any
    V: Any
    PAD_K: Any
    PAD_V: Any
    M: Any  # queries of a block
    N: Any  # keys of a block
    GROUP: Any
    PRECISION: Any
    PART: Any  # channels of values that `row_products` reads at once
    ROTATES: Any = None
    TANH: Any = None
    KIND: Any = None  # of sums
