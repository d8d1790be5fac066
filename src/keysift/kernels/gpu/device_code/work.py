"""What a program works on: its segment, its block, the keys its queries see, and the constants of its tile."""

import triton
import triton.language as tl

from keysift.kernels.gpu.device_code.elements import turn_rate


@triton.jit
def locate(blocks, item, queries, keys, offset, per_row, BLOCK: tl.constexpr):
    """Batch row, first query, queries, first key, keys and offset of a segment, and the first token of the block.

    Rows and first tokens are int64, because they are multiplied by strides. Lengths are int32.
    """
    if blocks is not None:
        at = blocks + item.to(tl.int64) * 7
        row = tl.load(at)
        query = tl.load(at + 1)
        count = tl.load(at + 2).to(tl.int32)
        key = tl.load(at + 3)
        key_count = tl.load(at + 4).to(tl.int32)
        distance = tl.load(at + 5)
        first = tl.load(at + 6).to(tl.int32)
    else:
        row = (item // per_row).to(tl.int64)
        query = tl.zeros([], tl.int64)
        count = queries.to(tl.int32)
        key = tl.zeros([], tl.int64)
        key_count = keys.to(tl.int32)
        distance = offset.to(tl.int64)
        first = ((item % per_row) * BLOCK).to(tl.int32)
    return row, query, count, key, key_count, distance, first


@triton.jit
def tile_constants(tiles, tile, ROTATES: tl.constexpr):
    """Turns per position, number of distances inside the window, half angle per position, and 1 / acceptance."""
    reach = tl.load(tiles.effective_window + tile)
    # An integer distance is below the window iff it is below its ceiling.
    span = tl.ceil(tl.minimum(reach, 1e18)).to(tl.int64)
    step = 1.5707963267948966 / reach
    inverse = 1.0 / tl.load(tiles.acceptance + tile)
    rate = tl.zeros([], tl.int64)
    if ROTATES:
        rate = turn_rate(tl.load(tiles.window + tile), tiles.w_th)
    return rate, span, step, inverse


@triton.jit
def clamp32(x, low, high):
    """An int64 clamped to a range inside int32."""
    return tl.minimum(tl.maximum(x, low), high).to(tl.int32)


@triton.jit
def visible_keys(at, count, key_count, span, BLOCK: tl.constexpr):
    """First key, rounded down to a block, and end of the keys that `count` queries from position `at` on may see."""
    start = clamp32(at - span + 1, 0, key_count)
    stop = clamp32(at + count, 0, key_count)
    return start // BLOCK * BLOCK, tl.where(start < stop, stop, 0)


@triton.jit
def visible_queries(key_first, key_stop, count, offset, span, BLOCK: tl.constexpr):
    """First query, rounded down to a block, and end of the queries that may see keys key_first .. key_stop - 1."""
    start = clamp32(key_first - offset, 0, count)
    stop = clamp32(key_stop - 1 - offset + span, 0, count)
    return start // BLOCK * BLOCK, tl.where(start < stop, stop, 0)


@triton.jit
def pairs(base, span, query, key, keys_left):
    """Mask of visible pairs of a block, decided on integers.

    Query i and key j, counted from the first of their blocks, have the distance base + i - j. It must be in [0, span).
    They are given as a column and a row, or as a row and a column.
    """
    stop = tl.minimum(query + clamp32(base + 1, -(1 << 30), 1 << 30), keys_left)
    start = query + clamp32(base - span + 1, -(1 << 30), 1 << 30)
    return (key < stop) & (key >= start)


@triton.jit
def distances(base, query, key, visible):
    """Distances of visible pairs as fp32, and 0 for the others."""
    return tl.where(visible, (base.to(tl.float32) + query.to(tl.float32)) - key.to(tl.float32), 0.0)


@triton.jit
def load_rows(pointer, at, inside, channel, WIDTH: tl.constexpr):
    """Rows that start at places `at` (int64), zero where not inside, padded with zero channels."""
    mask = inside[:, None] & (channel < WIDTH)[None, :]
    return tl.load(pointer + at[:, None] + channel[None, :], mask=mask, other=0.0)


@triton.jit
def row_products(a, b, power, kind, FIRST: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr, shape):
    """Products of rows of two sources, without channels before FIRST; the rows of the first times `power` unless None.

    A source is a pointer, places, and which rows are inside; `kind` is the dtype of the factors. Of wide fp32 rows,
    only some channels are read at once: each factor is two TF32 numbers, and all of them would not fit registers.
    """
    a_data, a_at, a_inside = a
    b_data, b_at, b_inside = b
    products = tl.zeros([a_at.shape[0], b_at.shape[0]], tl.float32)
    for start in range(0, PAD, shape.PART):
        channel = start + tl.arange(0, shape.PART)
        x = load_rows(a_data, a_at, a_inside, channel, WIDTH).to(kind)
        y = load_rows(b_data, b_at, b_inside, channel, WIDTH).to(kind)
        if FIRST > 0:
            x = tl.where(channel[None, :] < FIRST, 0.0, x)
        if power is not None:
            x *= power[:, None]
        products = tl.dot(x, tl.trans(y), products, input_precision=shape.PRECISION)
    return products


@triton.jit
def store_rows(pointer, at, inside, channel, x, WIDTH: tl.constexpr):
    """Write rows that start at places `at`, in the dtype of the pointer."""
    mask = inside[:, None] & (channel < WIDTH)[None, :]
    tl.store(pointer + at[:, None] + channel[None, :], x.to(pointer.dtype.element_ty), mask=mask)
