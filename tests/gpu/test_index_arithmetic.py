"""Loop bounds and masks of the kernels against unbounded integers, and addresses beyond 2^31 elements.

The interpreter computes in numpy's int32 and int64, which overflow as a device's do.
"""

from itertools import product
from random import Random

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from keysift.kernels.attend import attend
from keysift.kernels.gpu.availability import LARGEST_LENGTH
from keysift.kernels.gpu.device_code.work import pairs, visible_keys, visible_queries
from tests.gpu.interpreted import needs_interpreter

pytestmark = needs_interpreter
BLOCK = 16
ENDLESS = 999_999_984_306_749_440  # what `tile_constants` makes of an infinite window
FAR = 1 << 59  # `operators.LARGEST_OFFSET`


@triton.jit(do_not_specialize=["at", "count", "keys", "span", "first", "block"])
def examine(out, mask, at, count, keys, span, first, block, BLOCK: tl.constexpr):
    """The keys of queries 0 .. BLOCK - 1, the queries of keys first .. first + BLOCK - 1, and the pairs of a block."""
    at, span = at.to(tl.int64), span.to(tl.int64)
    start, stop = visible_keys(at, tl.minimum(count, BLOCK), keys, span, BLOCK)
    tl.store(out, start)
    tl.store(out + 1, stop)
    start, stop = visible_queries(first, tl.minimum(first + BLOCK, keys), count, at, span, BLOCK)
    tl.store(out + 2, start)
    tl.store(out + 3, stop)
    i = tl.arange(0, BLOCK)
    visible = pairs(at - block, span, i[:, None], i[None, :], keys - block)
    tl.store(mask + i[:, None] * BLOCK + i[None, :], visible.to(tl.int32))


def _check(at: int, count: int, keys: int, span: int, first: int, block: int) -> int:
    """Compare with Python's integers. Returns the number of visible pairs in the block."""
    out, mask = torch.zeros(4, dtype=torch.int64), torch.zeros(BLOCK, BLOCK, dtype=torch.int32)
    examine[(1,)](out, mask, at, count, keys, span, first, block, BLOCK)
    for (start, stop), low, high in (
        (out[:2].tolist(), max(at - span + 1, 0), min(at + min(count, BLOCK), keys)),
        (out[2:].tolist(), max(first - at, 0), min(min(first + BLOCK, keys) - 1 - at + span, count)),
    ):
        assert start % BLOCK == 0
        assert start >= 0
        if low < high:  # every visible row is visited, and no block before or after
            assert (start, stop) == (low // BLOCK * BLOCK, high)
        else:
            assert stop <= start
    i, j = np.arange(BLOCK).astype(object)[:, None], np.arange(BLOCK).astype(object)[None, :]
    distance = at + i - (block + j)
    expected = (distance >= 0) & (distance < span) & (block + j < keys)
    assert np.array_equal(mask.numpy() != 0, expected.astype(bool))
    return int(expected.sum())


def test_bounds_and_masks_of_small_segments() -> None:
    """Queries before, inside and after the keys, windows of 1 and more, blocks that end inside."""
    seen = [
        _check(at, count, keys, span, first, first)
        for at, count, keys, span, first in product(
            (-40, -17, -1, 0, 5, 31, 33, 90), (1, 37), (1, 16, 33), (1, 9, ENDLESS), (0, 16)
        )
    ]
    assert sum(count > 0 for count in seen) > 50


def test_bounds_and_masks_at_the_limits() -> None:
    """The largest lengths, offsets and windows that the backends accept."""
    random = Random(0)
    largest = LARGEST_LENGTH
    for at, span in product(
        (0, 1, largest - 1, -largest, FAR, -FAR, FAR + largest), (1, 257, largest, 1 << 60, ENDLESS)
    ):
        for keys, first in ((largest, 0), (largest, largest - BLOCK), (largest - 3, largest - BLOCK), (5, 0)):
            _check(at, random.choice((1, largest)), keys, span, first, first)
    assert _check(largest - BLOCK, largest, largest, 1, largest - BLOCK, largest - BLOCK) == BLOCK


@pytest.mark.slow
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_addresses_beyond_int32(axis: int) -> None:
    """A large stride puts the last batch row, head or token 2^31 elements behind the first."""
    shape, generator = (3, 3, 3, 8), torch.Generator().manual_seed(0)

    def spread(x: Tensor) -> Tensor:
        """The same numbers, far apart. The memory between them is never touched, so it is only reserved."""
        strides = [72, 24, 8, 1]
        strides[axis] = 1 << 30  # itself below 2^31
        elements = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
        y = torch.from_numpy(np.empty(elements, dtype=np.float32)).as_strided(shape, strides)
        return y.copy_(x)

    q, k, v = (torch.randn(shape, generator=generator) for _ in range(3))
    for name, backend in (("screening", "screening_gpu"), ("softpick", "sums_gpu")):
        near, far = ([x.requires_grad_() for x in xs] for xs in ((q, k, v), map(spread, (q, k, v))))
        results = [
            (out := attend(name, *xs, backend=backend), *torch.autograd.grad(out.sin().sum(), xs)) for xs in (near, far)
        ]
        assert all(map(torch.equal, *results))
        assert results[0][0].count_nonzero() > 0
