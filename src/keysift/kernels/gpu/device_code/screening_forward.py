"""Screening, forward: one program per block of queries and tile, and per split of the keys if there are few queries.

    s_ij = (q_i . k_j) / (|q_i| |k_j|)        MiPE rotates channels 0 and 1
    t_ij = max(1 - (1 - s_ij) / acceptance, 0)
    h_i = sum_j t_ij^2 cos^2(pi d_ij / (2 effective_window)) v_j / |v_j|
    u_i = tanh(|h_i|) / |h_i| h_i

The product q . k reads the inputs as they are: products of 16-bit numbers are exact in fp32. Channels 0 and 1 are
rotated in fp32 and added. Lengths of keys and values, and rotated channels of keys, are computed once per key by the
kernels `lengths` and `rotated_keys`. A row that sees a non-finite key or value has a NaN score, and becomes NaN.
"""

import triton
import triton.language as tl

from keysift.kernels.gpu.device_code.elements import (
    half_cosine,
    inverse_lengths,
    rotation,
    tanh_ratio,
    turn_rate,
)
from keysift.kernels.gpu.device_code.work import (
    distances,
    load_rows,
    locate,
    pairs,
    store_rows,
    tile_constants,
    visible_keys,
)


@triton.jit(do_not_specialize=["rows", "heads", "tokens"])
def lengths(x, out, rows, heads, tokens, WIDTH: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr):
    """1 / |x| of the rows of a B H T tensor, NaN where a row is not finite."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < rows
    places = at // tokens // heads * x.batch + at // tokens % heads * x.head + at % tokens * x.row
    inverse, _ = inverse_lengths(load_rows(x.data, places, inside, tl.arange(0, PAD), WIDTH).to(tl.float32))
    tl.store(out + at, inverse, mask=inside)


@triton.jit(do_not_specialize=["rows", "heads", "keys"])
def rotated_keys(k, inverse, tiles, out, rows, heads, keys, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    """Channels 0 and 1 of the unit keys as each tile rotates them: two tensors B H S.

    The position of a key is its index in the batch row. Only differences of positions matter.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < rows
    key = at % keys
    tile = at // keys % heads
    row = at // keys // heads
    place = row * k.batch + tile // GROUP * k.head + key * k.row
    scale = tl.load(inverse + (row * (heads // GROUP) + tile // GROUP) * keys + key, mask=inside, other=0.0)
    x0 = tl.load(k.data + place, mask=inside, other=0.0).to(tl.float32) * scale
    x1 = tl.load(k.data + place + 1, mask=inside, other=0.0).to(tl.float32) * scale
    c, s = rotation(key, turn_rate(tl.load(tiles.window + tile), tiles.w_th))
    tl.store(out + at, x0 * c - x1 * s, mask=inside)
    tl.store(out + rows.to(tl.int64) + at, x0 * s + x1 * c, mask=inside)


@triton.jit
def rotated_queries(q, at, inside, inverse, position, rate, shape):
    """Channels 0 and 1 of the unit queries, rotated, in fp32; not used if the kernel does not rotate."""
    first = inverse
    second = inverse
    if shape.ROTATES:
        x0 = tl.load(q + at, mask=inside, other=0.0).to(tl.float32) * inverse
        x1 = tl.load(q + at + 1, mask=inside, other=0.0).to(tl.float32) * inverse
        c, s = rotation(position, rate)
        first = x0 * c - x1 * s
        second = x0 * s + x1 * c
    return first, second


@triton.jit
def near_one(x, channel, shape):
    """Rows times a power of two, without the channels that are rotated; 1 / length before, and the power.

    Exact in fp32 and bf16. In fp16, channels below 2^-14 of the largest lose bits, at most 2^-25 of the row. Products
    with rows of lengths up to 1e37 stay finite.
    """
    y = x.to(tl.float32)
    inverse, power = inverse_lengths(y)
    y = y * power[:, None]
    if shape.ROTATES:
        y = tl.where(channel[None, :] < 2, 0.0, y)
    return y.to(x.dtype), inverse, power


@triton.jit
def finish(sums, at, inside, u, u_at, saved, shape):
    """Write u of some rows at places u_at, and what the backward pass needs. `at` counts rows of B H T."""
    channel = tl.arange(0, shape.PAD_V)
    norm = tl.sqrt_rn(tl.sum(sums * sums, 1))
    if saved.norm is not None:
        tl.store(saved.norm + at, norm, mask=inside)
    if saved.h is not None:
        store_rows(saved.h, at * shape.V, inside, channel, sums, shape.V)
    if shape.TANH:
        sums = sums * tanh_ratio(norm)[:, None]
    store_rows(u.data, u_at, inside, channel, sums, shape.V)


@triton.jit(do_not_specialize=["queries", "keys", "offset", "per_row", "rows", "key_rows"])
def forward(
    q, k, v, u, saved, partial, inverse, tiles, blocks, queries, keys, offset, per_row, rows, key_rows, shape
):  # fmt: skip
    """u, or with `partial` one part of h per split: B H T V fp32 each. rows and key_rows are B H T and B H S."""
    # The last queries see the most keys, so they go first.
    item = tl.num_programs(0) - 1 - tl.program_id(0)
    tile = tl.program_id(1)
    kv = (tile // shape.GROUP).to(tl.int64)
    row, query, count, key, key_count, distance, first = locate(blocks, item, queries, keys, offset, per_row, shape.M)
    rate, span, step, inverse_r = tile_constants(tiles, tile, shape.ROTATES)
    i = tl.arange(0, shape.M)
    j = tl.arange(0, shape.N)
    channel = tl.arange(0, shape.PAD_K)
    here = first + i < count
    token = query + first + i
    k_data = k.data + row * k.batch + kv * k.head
    v_data = v.data + row * v.batch + kv * v.head
    key_row = (row * (tl.num_programs(1) // shape.GROUP) + kv) * keys + key
    position = distance + first
    # Keys count their positions from the start of the row.
    q_at = row * q.batch + tile.to(tl.int64) * q.head + token * q.row
    x, q_inverse, power = near_one(load_rows(q.data, q_at, here, channel, shape.K), channel, shape)
    x_inverse = q_inverse / power
    x0, x1 = rotated_queries(q.data, q_at, here, q_inverse, key + position + i, rate, shape)
    channels_row = (row * tl.num_programs(1) + tile) * keys + key
    start, stop = visible_keys(position, tl.minimum(count - first, shape.M), key_count, span, shape.N)
    if partial is not None:
        size = tl.cdiv(tl.cdiv(tl.maximum(stop - start, 0), shape.N), tl.num_programs(2)) * shape.N
        start += tl.program_id(2) * size
        stop = tl.minimum(stop, start + size)
    sums = tl.zeros([shape.M, shape.PAD_V], tl.float32)
    for block in range(start, stop, shape.N):
        at = (block + j).to(tl.int64)
        inside = block + j < key_count
        places = (key + at) * k.row
        columns = tl.load(
            k_data + places[None, :] + channel[:, None], mask=inside[None, :] & (channel < shape.K)[:, None], other=0.0
        )
        score = tl.dot(x, columns, input_precision=shape.PRECISION)
        v_inverse = tl.load(inverse.v + key_row + at, mask=inside, other=0.0)
        k_inverse = tl.load(inverse.k + key_row + at, mask=inside, other=0.0) + v_inverse * 0.0
        score = score * (x_inverse[:, None] * k_inverse[None, :])
        if shape.ROTATES:
            k0 = tl.load(inverse.rotated + channels_row + at, mask=inside, other=0.0)
            k1 = tl.load(inverse.rotated + key_rows.to(tl.int64) + channels_row + at, mask=inside, other=0.0)
            score += x0[:, None] * k0[None, :] + x1[:, None] * k1[None, :]
        visible = pairs(position - block, span, i[:, None], j[None, :], key_count - block)
        t = 1.0 - (1.0 - score) * inverse_r
        t = tl.where(visible & ~(t <= 0.0), t, 0.0)  # a NaN stays
        if tl.max((t != 0.0).to(tl.int32)) > 0:
            root = t * half_cosine(distances(position - block, i[:, None], j[None, :], visible) * step)
            values = load_rows(v_data, (key + at) * v.row, inside, tl.arange(0, shape.PAD_V), shape.V)
            values = tl.where((v_inverse == v_inverse)[:, None], values.to(tl.float32) * v_inverse[:, None], 0.0)
            kind = v.data.dtype.element_ty
            sums = tl.dot((root * root).to(kind), values.to(kind), sums, input_precision=shape.PRECISION)
    at = (row * tl.num_programs(1) + tile) * queries + token
    if partial is not None:
        at += tl.program_id(2) * rows.to(tl.int64)
        store_rows(partial, at * shape.V, here, tl.arange(0, shape.PAD_V), sums, shape.V)
    else:
        finish(sums, at, here, u, row * u.batch + tile.to(tl.int64) * u.head + token * u.row, saved, shape)


@triton.jit(do_not_specialize=["rows", "heads", "queries", "splits"])
def combine(partial, u, saved, rows, heads, queries, splits, shape, BLOCK: tl.constexpr):
    """Add the parts of h in a fixed order, and finish."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < rows
    channel = tl.arange(0, shape.PAD_V)
    sums = tl.zeros([BLOCK, shape.PAD_V], tl.float32)
    for split in range(splits):
        sums += load_rows(partial, (at + split * rows.to(tl.int64)) * shape.V, inside, channel, shape.V)
    u_at = at // queries // heads * u.batch + at // queries % heads * u.head + at % queries * u.row
    finish(sums, at, inside, u, u_at, saved, shape)
