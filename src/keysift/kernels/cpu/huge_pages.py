"""Move memory that every decoded token reads, weights and cache, to pages of 2 MB, where it is.

The processor prefetches up to the end of a page. One thread reads half as much again, or more, from large pages
(`keysift bench decode` prints both bandwidths). Linux does this in place since 6.1; elsewhere nothing happens.
"""

import ctypes
import sys
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from typing import Any

from torch import Tensor

PAGE = 2 << 20
_MIN_BYTES = 8 << 20  # bytes in total; less than that stays in the processor's cache
_COLLAPSE = 25  # MADV_COLLAPSE


def use_huge_pages(tensors: Iterable[Tensor]) -> None:
    """Move the pages of these CPU tensors. Addresses and values stay the same; pages that cannot be moved are left."""
    spans = {(x.untyped_storage().data_ptr(), x.untyped_storage().nbytes()) for x in tensors if x.device.type == "cpu"}
    madvise = _madvise()
    if madvise is None or sum(size for _, size in spans) < _MIN_BYTES:
        return
    pages = sorted({n for at, size in spans if size for n in range(at // PAGE, (at + size - 1) // PAGE + 1)})
    ends = [n for n, after in pairwise([*pages, -1]) if after != n + 1]
    starts = [n for before, n in pairwise([-1, *pages]) if before != n - 1 or before < 0]
    for first, last in zip(starts, ends, strict=True):
        if madvise(first * PAGE, (last + 1 - first) * PAGE, _COLLAPSE) != 0:
            # The call stops at the first page that cannot be moved, such as one mapped from a file.
            for number in range(first, last + 1):
                madvise(number * PAGE, PAGE, _COLLAPSE)


@cache
def _madvise() -> Any:
    """The function of the C library, or None where it does not know this advice."""
    if sys.platform != "linux":
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return madvise
