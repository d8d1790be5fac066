"""Screening, backward: gradients of all inputs without atomic operations, so that results are reproducible.

    prepare           dh from the gradient of u, through TanhNorm, once per query
    backward_queries  dq, and one partial sum per block for each scalar of its tile
    backward_keys     dk and dv: a program owns a block of keys and visits the queries of all tiles that read it

Scores are recomputed. With dp = dh . v / |v| and y = pi d / (2 effective_window):

    ds = dp cos(y)^2 2 t / r
    dr = ds (1 - s) / r
    d effective_window = dp t^2 2 y sin(y) cos(y) / effective_window

A query with a NaN output has dh = 0. Only such queries see a non-finite row, and these are read as zeros.
"""

import triton
import triton.language as tl

from keysift.kernels.gpu.device_code.elements import (
    column,
    half_cosine,
    half_sine,
    rotation,
    tanh_ratio,
    tanh_slope,
    unit_gradient,
    with_first_columns,
)
from keysift.kernels.gpu.device_code.screening_forward import near_one, rotated_queries
from keysift.kernels.gpu.device_code.work import (
    distances,
    load_rows,
    locate,
    pairs,
    row_products,
    store_rows,
    tile_constants,
    visible_keys,
    visible_queries,
)


@triton.jit(do_not_specialize=["rows", "heads", "queries"])
def prepare(du, u, saved, dh, rows, heads, queries, shape, BLOCK: tl.constexpr):
    """dh of every query, in the dtype of du. h is `saved.h`, or u / (tanh(|h|) / |h|) if that is None."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < rows
    channel = tl.arange(0, shape.PAD_V)
    row = at // queries // heads
    tile = at // queries % heads
    token = at % queries
    norm = tl.load(saved.norm + at, mask=inside, other=0.0)
    d = load_rows(du.data, row * du.batch + tile * du.head + token * du.row, inside, channel, shape.V).to(tl.float32)
    if shape.TANH:
        ratio = tanh_ratio(norm)
        if saved.h is not None:
            h = load_rows(saved.h, at * shape.V, inside, channel, shape.V)
        else:
            u_at = row * u.batch + tile * u.head + token * u.row
            h = load_rows(u.data, u_at, inside, channel, shape.V).to(tl.float32) / ratio[:, None]
        along = tl.sum(d * h, 1) * tanh_slope(norm)
        d = d * ratio[:, None] + h * along[:, None]
    store_rows(dh, at * shape.V, inside, channel, tl.where((norm == norm)[:, None], d, 0.0), shape.V)


@triton.jit
def load_inverse(pointer, at, inside):
    """1 / |x|, and 0 for rows that are not finite."""
    inverse = tl.load(pointer + at, mask=inside, other=0.0)
    return tl.where(inverse == inverse, inverse, 0.0)


@triton.jit
def load_finite(pointer, at, inside, inverse, channel, WIDTH: tl.constexpr):
    """Rows in their dtype; zeros instead of rows that are not finite, which have an inverse of 0."""
    x = load_rows(pointer, at, inside, channel, WIDTH)
    return tl.where((inverse > 0.0)[:, None], x, 0.0).to(pointer.dtype.element_ty)


@triton.jit
def load_channels(rotated, at, apart, inside, inverse, shape):
    """Rotated channels 0 and 1 of unit keys, and 0 for keys that are not finite; not used without rotation."""
    first = inverse
    second = inverse
    if shape.ROTATES:
        first = tl.load(rotated + at, mask=inside & (inverse > 0.0), other=0.0)
        second = tl.load(rotated + apart + at, mask=inside & (inverse > 0.0), other=0.0)
    return first, second


@triton.jit
def store_channels(rotated, at, rows, inside, first, second, shape):
    """Write rotated channels 0 and 1 of unit queries."""
    if shape.ROTATES:
        tl.store(rotated + at, first, mask=inside)
        tl.store(rotated + rows.to(tl.int64) + at, second, mask=inside)


@triton.jit
def store_gradient(to, to_at, x, at, inside, inverse, d, channel, WIDTH: tl.constexpr):
    """Write the gradient of rows x from that of x / |x|."""
    unit = load_finite(x, at, inside, inverse, channel, WIDTH).to(tl.float32) * inverse[:, None]
    store_rows(to, to_at, inside, channel, unit_gradient(d, unit, inverse), WIDTH)


@triton.jit
def rotated_unit(x, inverse, first, second, channel, shape):
    """Unit rows with their rotated channels, in the dtype of x."""
    unit = x.to(tl.float32) * inverse[:, None]
    if shape.ROTATES:
        unit = with_first_columns(unit, first, second, channel)
    return unit.to(x.dtype)


@triton.jit
def scores(a, power, b, shape):
    """Products of rows, times `power` as in `near_one`, without the channels that are rotated."""
    FIRST: tl.constexpr = 2 if shape.ROTATES else 0
    return row_products(a, b, power, a[0].dtype.element_ty, FIRST, shape.K, shape.PAD_K, shape)


@triton.jit
def rotate_back(d, position, rate, channel, shape):
    """Gradient of unit rows from that of rotated ones."""
    if shape.ROTATES:
        c, s = rotation(position, rate)
        d0 = column(d, 0, channel)
        d1 = column(d, 1, channel)
        d = with_first_columns(d, d0 * c + d1 * s, d1 * c - d0 * s, channel)
    return d


@triton.jit
def trimmed(score, inverse_r, visible):
    """max(1 - (1 - s) / r, 0) of visible pairs, 0 for the others."""
    t = 1.0 - (1.0 - score) * inverse_r
    return tl.where(visible & (t > 0.0), t, 0.0)


@triton.jit
def store_slopes(slopes, item, tile, d_acceptance, d_reach, d_angle):
    """Write a block's sums for acceptance, effective window and window of a tile, in the layout items H 3."""
    slopes += (item.to(tl.int64) * tl.num_programs(1) + tile) * 3
    tl.store(slopes, tl.sum(d_acceptance, 0))
    tl.store(slopes + 1, tl.sum(d_reach, 0))
    tl.store(slopes + 2, tl.sum(d_angle, 0))


@triton.jit(do_not_specialize=["queries", "keys", "offset", "per_row", "rows", "key_rows"])
def backward_queries(
    q, k, v, dh, dq, rotated, slopes, inverse, tiles, blocks, queries, keys, offset, per_row, rows, key_rows, shape
):  # fmt: skip
    """dq; `slopes`, see `store_slopes`; and the rotated channels of the unit queries for `backward_keys`, 2 B H T."""
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
    at = (row * tl.num_programs(1) + tile) * queries + token
    position = distance + first
    k_data = k.data + row * k.batch + kv * k.head
    v_data = v.data + row * v.batch + kv * v.head
    key_row = (row * (tl.num_programs(1) // shape.GROUP) + kv) * keys + key
    q_inverse = load_inverse(inverse.q, at, here)
    places = row * q.batch + tile.to(tl.int64) * q.head + token * q.row
    q_source = (q.data, places, here & (q_inverse > 0.0))
    x = load_finite(q.data, places, here, q_inverse, channel, shape.K)
    x0, x1 = rotated_queries(q.data, places, here & (q_inverse > 0.0), q_inverse, key + position + i, rate, shape)
    store_channels(rotated, at, rows, here, x0, x1, shape)
    x, unscaled, power = near_one(x, channel, shape)
    x_inverse = unscaled / power
    channels_row = (row * tl.num_programs(1) + tile) * keys + key
    dx = tl.zeros([shape.M, shape.PAD_K], tl.float32)
    d_acceptance = tl.zeros([shape.M], tl.float32)
    d_reach = tl.zeros([shape.M], tl.float32)
    d_angle = tl.zeros([shape.M], tl.float32)
    start, stop = visible_keys(position, tl.minimum(count - first, shape.M), key_count, span, shape.N)
    for block in range(start, stop, shape.N):
        key_at = (block + j).to(tl.int64)
        inside = block + j < key_count
        k_inverse = load_inverse(inverse.k, key_row + key_at, inside)
        k_at = (key + key_at) * k.row
        k0, k1 = load_channels(inverse.rotated, channels_row + key_at, key_rows.to(tl.int64), inside, k_inverse, shape)
        if shape.PART < shape.PAD_K:
            score = scores(q_source, power, (k_data, k_at, inside & (k_inverse > 0.0)), shape)
        else:
            k_rows = load_finite(k_data, k_at, inside, k_inverse, channel, shape.K)
            score = tl.dot(x, tl.trans(k_rows), input_precision=shape.PRECISION)
        score *= x_inverse[:, None] * k_inverse[None, :]
        if shape.ROTATES:
            score += x0[:, None] * k0[None, :] + x1[:, None] * k1[None, :]
        visible = pairs(position - block, span, i[:, None], j[None, :], key_count - block)
        t = trimmed(score, inverse_r, visible)
        if tl.max(t) > 0.0:
            v_inverse = load_inverse(inverse.v, key_row + key_at, inside)
            values = (v_data, (key + key_at) * v.row, inside & (v_inverse > 0.0))
            d = (dh, at * shape.V, here)
            dp = row_products(d, values, None, dh.dtype.element_ty, 0, shape.V, shape.PAD_V, shape) * v_inverse[None, :]
            apart = distances(position - block, i[:, None], j[None, :], visible)
            y = apart * step
            c = half_cosine(y)
            ds = dp * c * c * t
            d_acceptance += tl.sum(ds * (1.0 - score), 1)
            d_reach += tl.sum(dp * t * t * half_sine(y) * c * y, 1)
            if shape.ROTATES:
                d_angle += tl.sum(ds * apart * (x0[:, None] * k1[None, :] - x1[:, None] * k0[None, :]), 1)
            if shape.PART < shape.PAD_K:  # read again, after the scores have left their registers
                k_rows = load_finite(k_data, k_at, inside, k_inverse, channel, shape.K)
            unit = rotated_unit(k_rows, k_inverse, k0, k1, channel, shape)
            dx = tl.dot(ds.to(unit.dtype), unit, dx, input_precision=shape.PRECISION)
    dx = rotate_back(dx * (2.0 * inverse_r), key + position + i, rate, channel, shape)
    dq_at = row * dq.batch + tile.to(tl.int64) * dq.head + token * dq.row
    store_gradient(dq.data, dq_at, q.data, places, here, q_inverse, dx, channel, shape.K)
    store_slopes(slopes, item, tile, d_acceptance, d_reach, d_angle)


@triton.jit
def add_queries(block, dv, q_data, q_row, dh, rows_of, apart, rows, segment, constants, shape):
    """The gradient of a block's rotated unit keys from the queries of one tile, and dv with their part added.

    Scores have keys as rows and queries as columns, so that both products take them as they are.
    """
    x, k_rows, power, x_inverse, k0, k1, v_data, v_at, v_inverse = block
    query, count, key_count, distance, first = segment
    _, span, step, inverse_r = constants
    i = tl.arange(0, shape.M)
    j = tl.arange(0, shape.N)
    channel = tl.arange(0, shape.PAD_K)
    value_channel = tl.arange(0, shape.PAD_V)
    dx = tl.zeros([shape.N, shape.PAD_K], tl.float32)
    start, stop = visible_queries(first, tl.minimum(first + shape.N, key_count), count, distance, span, shape.M)
    for block_first in range(start, stop, shape.M):
        here = block_first + i < count
        token = query + block_first + i
        base = distance + block_first - first
        q_inverse = load_inverse(rows_of.q, rows + token, here)
        q0, q1 = load_channels(rows_of.rotated, rows + token, apart, here, q_inverse, shape)
        if shape.PART < shape.PAD_K:
            score = scores(k_rows, power, (q_data, token * q_row, here & (q_inverse > 0.0)), shape)
        else:
            q_rows = load_finite(q_data, token * q_row, here, q_inverse, channel, shape.K)
            score = tl.dot(x, tl.trans(q_rows), input_precision=shape.PRECISION)
        score *= x_inverse[:, None] * q_inverse[None, :]
        if shape.ROTATES:
            score += k0[:, None] * q0[None, :] + k1[:, None] * q1[None, :]
        visible = pairs(base, span, i[None, :], j[:, None], key_count - first)
        t = trimmed(score, inverse_r, visible)
        if tl.max(t) > 0.0:
            d = load_rows(dh, (rows + token) * shape.V, here, value_channel, shape.V)
            values = (v_data, v_at, (first + j < key_count) & (v_inverse > 0.0))
            d_rows = (dh, (rows + token) * shape.V, here)
            dp = row_products(values, d_rows, None, d.dtype, 0, shape.V, shape.PAD_V, shape) * v_inverse[:, None]
            c = half_cosine(distances(base, i[None, :], j[:, None], visible) * step)
            root = t * c
            dv = tl.dot((root * root).to(d.dtype), d, dv, input_precision=shape.PRECISION)
            if shape.PART < shape.PAD_K:  # read again, after the scores have left their registers
                q_rows = load_finite(q_data, token * q_row, here, q_inverse, channel, shape.K)
            unit = rotated_unit(q_rows, q_inverse, q0, q1, channel, shape)
            dx = tl.dot((dp * root * c).to(unit.dtype), unit, dx, input_precision=shape.PRECISION)
    return dx, dv


@triton.jit(do_not_specialize=["queries", "keys", "offset", "per_row", "heads", "rows", "key_rows"])
def backward_keys(
    q, k, v, dh, dk, dv, q_of, inverse, tiles, blocks, queries, keys, offset, per_row, heads, rows, key_rows, shape
):  # fmt: skip
    """dk and dv, each summed over the queries of all tiles that read the kv tile."""
    kv = tl.program_id(1).to(tl.int64)
    row, query, count, key, key_count, distance, first = locate(
        blocks, tl.program_id(0), queries, keys, offset, per_row, shape.N
    )
    j = tl.arange(0, shape.N)
    channel = tl.arange(0, shape.PAD_K)
    value_channel = tl.arange(0, shape.PAD_V)
    inside = first + j < key_count
    token = key + first + j
    key_row = (row * tl.num_programs(1) + kv) * keys + token
    k_at = row * k.batch + kv * k.head + token * k.row
    v_at = row * v.batch + kv * v.head + token * v.row
    k_inverse = load_inverse(inverse.k, key_row, inside)
    v_inverse = load_inverse(inverse.v, key_row, inside)
    x = load_finite(k.data, k_at, inside, k_inverse, channel, shape.K)
    x, unscaled, power = near_one(x, channel, shape)
    x_inverse = unscaled / power
    dk_rows = tl.zeros([shape.N, shape.PAD_K], tl.float32)
    dv_rows = tl.zeros([shape.N, shape.PAD_V], tl.float32)
    for member in range(shape.GROUP):
        tile = kv * shape.GROUP + member
        constants = tile_constants(tiles, tile, shape.ROTATES)
        channels = (row * heads + tile) * keys + token
        k0, k1 = load_channels(inverse.rotated, channels, key_rows.to(tl.int64), inside, k_inverse, shape)
        block = (x, (k.data, k_at, inside & (k_inverse > 0.0)), power, x_inverse, k0, k1, v.data, v_at, v_inverse)
        q_data = q.data + row * q.batch + tile * q.head
        segment = (query, count, key_count, distance, first)
        at = (row * heads + tile) * queries
        dx, dv_rows = add_queries(
            block, dv_rows, q_data, q.row, dh, q_of, rows.to(tl.int64), at, segment, constants, shape
        )  # fmt: skip
        dk_rows += rotate_back(dx * (2.0 * constants[3]), token, constants[0], channel, shape)
    dk_at = row * dk.batch + kv * dk.head + token * dk.row
    store_gradient(dk.data, dk_at, k.data, k_at, inside, k_inverse, dk_rows, channel, shape.K)
    dv_at = row * dv.batch + kv * dv.head + token * dv.row
    store_gradient(dv.data, dv_at, v.data, v_at, inside, v_inverse, dv_rows, value_channel, shape.V)
