"""Additive mechanisms: sums over keys in one pass, forward and backward, without atomic operations.

    x_ij = scale q_i . k_j + shift_i
    out_i = sum_j top(x_ij) v_j / (sum_j bottom(x_ij) + eps)        over keys at distances 0 .. window - 1

The kinds are those of csrc/sums.h: 0 ReLU, 1 ReLU^2, 2 relu-exp, 3 sigmoid, 4 relu-exp normalised, 5 Softpick. The
first four have no denominator. Terms of the others are summed times exp(-m), where m >= 0 is the largest score so far.
"""

import triton
import triton.language as tl

from keysift.kernels.gpu.device_code.work import (
    load_rows,
    locate,
    pairs,
    row_products,
    store_rows,
    visible_keys,
    visible_queries,
)

# As in csrc/sums_kernel.h: without this factor, which cancels, subnormal scores would give subnormal denominators.
TERM = tl.constexpr(4294967296.0)


@triton.jit
def span_of(window):
    """Number of distances that a query sees, int64. A window of 0 is none."""
    return tl.where(window > 0, window.to(tl.int64), 1 << 60)


@triton.jit
def minus_one(x):
    """exp(x) - 1, by its series where |x| < 1/2."""
    s = x * (1.0 / 40320.0) + 1.0 / 5040.0
    s = s * x + 1.0 / 720.0
    s = s * x + 1.0 / 120.0
    s = s * x + 1.0 / 24.0
    s = s * x + 1.0 / 6.0
    s = s * x + 0.5
    return tl.where(tl.abs(x) < 0.5, x + x * x * s, tl.exp(x) - 1.0)


@triton.jit
def masked(x, visible, KIND: tl.constexpr):
    """The scores, and for masked keys one with weight and slope zero."""
    return tl.where(visible, x, 0.0 if KIND == 5 else -1e30)


@triton.jit
def weight_and_slope(x, dp, log, delta, KIND: tl.constexpr):
    """The weight of a score and the gradient of the score: dp is dout . v, delta is dout . out."""
    above = x > 0.0
    if KIND == 0:
        return tl.where(above, x, 0.0), tl.where(above, dp, 0.0)
    if KIND == 1:
        r = tl.where(above, x, 0.0)
        return r * r, dp * (r + r)
    if KIND == 2:
        r = tl.where(above, x, 0.0)
        return minus_one(r), tl.where(above, dp * tl.exp(r), 0.0)
    if KIND == 3:
        e = tl.exp(-tl.abs(x))
        large = 1.0 / (1.0 + e)
        return tl.where(x < 0.0, e * large, large), dp * large * (e * large)
    # exp(x - log) as a square: with a small denominator it would overflow although its product does not.
    root = tl.exp((x - log) * 0.5)
    w = tl.where(above, root * (root * -minus_one(-tl.abs(x))), 0.0)
    dx = tl.where(above, root * (root * (dp - delta)), 0.0)
    if KIND == 5:
        dx = tl.where(x < 0.0, root * (root * delta), dx)
    return w, dx


@triton.jit
def weight(x, KIND: tl.constexpr):
    """The weight of a score, for kinds without a denominator."""
    w, _ = weight_and_slope(x, x, x, x, KIND)
    return w


@triton.jit
def as_factor(x, like):
    """In the dtype of `like`; fp32 instead of fp16, which cannot hold weights above 65,504."""
    return x.to(tl.float32 if like.dtype == tl.float16 else like.dtype)


@triton.jit(do_not_specialize=["queries", "keys", "offset", "per_row", "window", "scale", "eps"])
def forward(q, k, v, shift, out, log, blocks, queries, keys, offset, per_row, window, scale, eps, shape):
    """out, fp32, and the logarithm of the denominator: 0 without one, +inf where it is 0. Both contiguous."""
    item = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    kv = (head // shape.GROUP).to(tl.int64)
    row, query, count, key, key_count, distance, first = locate(blocks, item, queries, keys, offset, per_row, shape.M)
    i = tl.arange(0, shape.M)
    j = tl.arange(0, shape.N)
    channel = tl.arange(0, shape.PAD_K)
    value_channel = tl.arange(0, shape.PAD_V)
    here = first + i < count
    token = query + first + i
    at = (row * tl.num_programs(1) + head) * queries + token
    position = distance + first
    k_data = k.data + row * k.batch + kv * k.head
    v_data = v.data + row * v.batch + kv * v.head
    q_at = row * q.batch + head.to(tl.int64) * q.head + token * q.row
    x = load_rows(q.data, q_at, here, channel, shape.K)
    added = tl.zeros([shape.M], tl.float32)
    if shift is not None:
        added = tl.load(shift + at, mask=here, other=0.0)
    sums = tl.zeros([shape.M, shape.PAD_V], tl.float32)
    total = tl.zeros([shape.M], tl.float32)
    largest = tl.zeros([shape.M], tl.float32)
    span = span_of(window)
    start, stop = visible_keys(position, tl.minimum(count - first, shape.M), key_count, span, shape.N)
    for block in range(start, stop, shape.N):
        place = key + (block + j).to(tl.int64)
        inside = block + j < key_count
        rows = load_rows(k_data, place * k.row, inside, channel, shape.K)
        score = tl.dot(x, tl.trans(rows), input_precision=shape.PRECISION) * scale + added[:, None]
        visible = pairs(position - block, span, i[:, None], j[None, :], key_count - block)
        score = masked(score, visible, shape.KIND)
        if shape.KIND < 4:
            w = weight(score, shape.KIND)
        else:
            m = tl.maximum(largest, tl.max(score, 1))
            terms = tl.exp(tl.maximum(score, 0.0) - m[:, None]) * -minus_one(-tl.abs(score)) * TERM
            w = tl.where(score > 0.0, terms, 0.0)
            factor = tl.exp(largest - m)
            total = total * factor + tl.sum(terms if shape.KIND == 5 else w, 1)
            sums = sums * factor[:, None]
            largest = m
        if tl.max(w) > 0.0:
            values = load_rows(v_data, place * v.row, inside, value_channel, shape.V)
            sums = tl.dot(as_factor(w, values), as_factor(values, values), sums, input_precision=shape.PRECISION)
    logarithm = total
    if shape.KIND >= 4:
        total += TERM * eps * tl.exp(-largest)
        known = total > 0.0
        sums = tl.where(known[:, None], sums / tl.where(known, total, 1.0)[:, None], 0.0)
        logarithm = tl.where(known, largest + tl.log(tl.where(known, total, 1.0) / TERM), float("inf"))
    tl.store(log + at, logarithm, mask=here)
    store_rows(out, at * shape.V, here, value_channel, sums, shape.V)


@triton.jit(do_not_specialize=["queries", "keys", "offset", "per_row", "window", "scale"])
def backward_queries(
    q, k, v, shift, dout, log, delta, dq, dshift, blocks, queries, keys, offset, per_row, window, scale, shape
):  # fmt: skip
    """dq and the gradient of the shift. dout is contiguous."""
    item = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    kv = (head // shape.GROUP).to(tl.int64)
    row, query, count, key, key_count, distance, first = locate(blocks, item, queries, keys, offset, per_row, shape.M)
    i = tl.arange(0, shape.M)
    j = tl.arange(0, shape.N)
    channel = tl.arange(0, shape.PAD_K)
    here = first + i < count
    token = query + first + i
    at = (row * tl.num_programs(1) + head) * queries + token
    position = distance + first
    k_data = k.data + row * k.batch + kv * k.head
    v_data = v.data + row * v.batch + kv * v.head
    x = load_rows(q.data, row * q.batch + head.to(tl.int64) * q.head + token * q.row, here, channel, shape.K)
    row_log = tl.load(log + at, mask=here, other=0.0)
    row_delta = tl.load(delta + at, mask=here, other=0.0)
    kind = tl.float32 if v.data.dtype.element_ty == tl.float16 else v.data.dtype.element_ty
    added = tl.zeros([shape.M], tl.float32)
    if shift is not None:
        added = tl.load(shift + at, mask=here, other=0.0)
    dx = tl.zeros([shape.M, shape.PAD_K], tl.float32)
    slopes = tl.zeros([shape.M], tl.float32)
    span = span_of(window)
    start, stop = visible_keys(position, tl.minimum(count - first, shape.M), key_count, span, shape.N)
    for block in range(start, stop, shape.N):
        place = key + (block + j).to(tl.int64)
        inside = block + j < key_count
        rows = load_rows(k_data, place * k.row, inside, channel, shape.K)
        score = tl.dot(x, tl.trans(rows), input_precision=shape.PRECISION) * scale + added[:, None]
        visible = pairs(position - block, span, i[:, None], j[None, :], key_count - block)
        score = masked(score, visible, shape.KIND)
        # Where no score is positive, only Softpick and sigmoid have slopes.
        if shape.KIND == 3 or shape.KIND == 5 or tl.max(score) > 0.0:
            values = (v_data, place * v.row, inside)
            dp = row_products((dout, at * shape.V, here), values, None, kind, 0, shape.V, shape.PAD_V, shape)
            _, ds = weight_and_slope(score, dp, row_log[:, None], row_delta[:, None], shape.KIND)
            slopes += tl.sum(ds, 1)
            dx = tl.dot(as_factor(ds, rows), as_factor(rows, rows), dx, input_precision=shape.PRECISION)
    dq_at = row * dq.batch + head.to(tl.int64) * dq.head + token * dq.row
    store_rows(dq.data, dq_at, here, channel, dx * scale, shape.K)
    tl.store(dshift + at, slopes, mask=here)


@triton.jit
def add_queries(block, sums, q_data, q_row, dout, per_query, rows, segment, span, scale, shape):
    """dk / scale and dv of a block of keys, with the queries of one head added. Scores have keys as rows."""
    x, v_data, v_at = block
    dx, dv = sums
    shift, log, delta = per_query
    query, count, key_count, distance, first = segment
    i = tl.arange(0, shape.M)
    j = tl.arange(0, shape.N)
    value_channel = tl.arange(0, shape.PAD_V)
    kind = tl.float32 if v_data.dtype.element_ty == tl.float16 else v_data.dtype.element_ty
    start, stop = visible_queries(first, tl.minimum(first + shape.N, key_count), count, distance, span, shape.M)
    for block_first in range(start, stop, shape.M):
        here = block_first + i < count
        token = query + block_first + i
        at = rows + token
        q_rows = load_rows(q_data, token * q_row, here, tl.arange(0, shape.PAD_K), shape.K)
        score = tl.dot(x, tl.trans(q_rows), input_precision=shape.PRECISION) * scale
        if shift is not None:
            score += tl.load(shift + at, mask=here, other=0.0)[None, :]
        visible = pairs(distance + block_first - first, span, i[None, :], j[:, None], key_count - first)
        score = masked(score, visible & here[None, :], shape.KIND)
        if shape.KIND == 3 or shape.KIND == 5 or tl.max(score) > 0.0:
            d = load_rows(dout, at * shape.V, here, value_channel, shape.V).to(kind)
            values = (v_data, v_at, first + j < key_count)
            d_rows = (dout, at * shape.V, here)
            dp = row_products(values, d_rows, None, kind, 0, shape.V, shape.PAD_V, shape)
            row_log = tl.load(log + at, mask=here, other=0.0)
            row_delta = tl.load(delta + at, mask=here, other=0.0)
            w, ds = weight_and_slope(score, dp, row_log[None, :], row_delta[None, :], shape.KIND)
            dv = tl.dot(w.to(kind), d, dv, input_precision=shape.PRECISION)
            dx = tl.dot(as_factor(ds, x), as_factor(q_rows, x), dx, input_precision=shape.PRECISION)
    return dx, dv


@triton.jit(do_not_specialize=["queries", "keys", "offset", "per_row", "window", "heads", "scale"])
def backward_keys(
    q, k, v, shift, dout, log, delta, dk, dv, blocks, queries, keys, offset, per_row, window, heads, scale, shape
):  # fmt: skip
    """dk and dv, each summed over the queries of all heads that read the kv head."""
    kv = tl.program_id(1).to(tl.int64)
    row, query, count, key, key_count, distance, first = locate(
        blocks, tl.program_id(0), queries, keys, offset, per_row, shape.N
    )
    j = tl.arange(0, shape.N)
    channel = tl.arange(0, shape.PAD_K)
    value_channel = tl.arange(0, shape.PAD_V)
    inside = first + j < key_count
    token = key + first + j
    x = load_rows(k.data, row * k.batch + kv * k.head + token * k.row, inside, channel, shape.K)
    v_at = row * v.batch + kv * v.head + token * v.row
    dx = tl.zeros([shape.N, shape.PAD_K], tl.float32)
    dv_rows = tl.zeros([shape.N, shape.PAD_V], tl.float32)
    span = span_of(window)
    for member in range(shape.GROUP):
        head = kv * shape.GROUP + member
        q_data = q.data + row * q.batch + head * q.head
        rows = (row * heads + head) * queries
        segment = (query, count, key_count, distance, first)
        block = (x, v.data, v_at)
        dx, dv_rows = add_queries(
            block, (dx, dv_rows), q_data, q.row, dout, (shift, log, delta), rows, segment, span, scale, shape
        )
    dk_at = row * dk.batch + kv * dk.head + token * dk.row
    store_rows(dk.data, dk_at, inside, channel, dx * scale, shape.K)
    dv_at = row * dv.batch + kv * dv.head + token * dv.row
    store_rows(dv.data, dv_at, inside, value_channel, dv_rows, shape.V)
