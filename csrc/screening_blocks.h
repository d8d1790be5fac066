// Steps that both passes of screening share: packing rows, scoring a block, listing pairs, and the relevance.
#pragma once

#include "blocks.h"
#include "products.h"
#include "rows.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

// The row of k and v that holds a key of a segment.
KEYSIFT_INLINE int64_t key_row(const keysift_problem& p, const keysift_segment& segment, int64_t kv, int64_t key) {
  const int64_t at = segment.key + key;
  return p.ring ? p.ring[2 * kv] + (p.ring_first[segment.row] + at) % p.ring[2 * kv + 1] : at;
}

// Packs the needed keys of a block as unit, rotated rows, transposed to (key width, kBlock), in whole vectors. Keys past the
// end of the segment become zeros; keys that are not needed are left unchanged. staging holds kBlock rows.
template <class S>
KEYSIFT_INLINE void pack_keys(const S& shape, const Plan& plan, const Tile& tile, const keysift_segment& segment, int64_t kv,
                              int64_t block_key, KeySpan needed, float* staging, float* packed) {
  const keysift_problem& p = plan.problem;
  const int64_t width = shape.key();
  const float* rows;
  int64_t stride = p.k.row_stride;
  const int key_count = keys_in_block(segment, block_key);
  const int from = needed.from / kLanes * kLanes, to = (needed.to + kLanes - 1) / kLanes * kLanes;
  const int64_t first = key_row(p, segment, kv, block_key + from);
  const bool contiguous = !p.ring || key_row(p, segment, kv, block_key + to - 1) - first == to - 1 - from;
  if (p.dtype == KEYSIFT_F32 && to <= key_count && stride < (1 << 24) && contiguous) {
    rows = reinterpret_cast<const float*>(row_of(p.k, p.dtype, segment.row, kv, first));
  } else {
    memset(staging, 0, static_cast<size_t>((to - from) * width) * 4);
    for (int j = from; j < smaller(to, key_count); ++j) {
      const int64_t row = key_row(p, segment, kv, block_key + j);
      read_row(row_of(p.k, p.dtype, segment.row, kv, row), p.dtype, width, width, staging + (j - from) * width);
    }
    rows = staging;
    stride = width;
  }
  float cosines[kBlock], sines[kBlock];
  if (tile.rotates) rotation_table(tile.turns_per_position, block_key + from, to - from, cosines + from, sines + from);
  const vi step = lane_numbers() * splat(static_cast<int32_t>(stride));
  for (int j = from; j < to; j += kLanes) {
    vd low{}, high{};
    for (int64_t x = 0; x < width; ++x) {
      float* column = packed + x * kBlock + j;
      store(column, gather(rows + (j - from) * stride + x, step));
      const vd a = load_wide(column), b = load_wide(column + kLanes / 2);
      low += a * a;
      high += b * b;
    }
    double squares[kLanes];
    float factor_high[kLanes], factor_low[kLanes];
    memcpy(squares, &low, sizeof low);
    memcpy(squares + kLanes / 2, &high, sizeof high);
    for (int l = 0; l < kLanes; ++l) {
      const Factor factor(1.0 / larger(sqrt(squares[l]), kUnitEps));
      factor_high[l] = factor.high;
      factor_low[l] = factor.low;
    }
    const vf by_high = load(factor_high), by_low = load(factor_low);
    for (int64_t x = 0; x < width; ++x) {
      float* column = packed + x * kBlock + j;
      store(column, times(load(column), by_high, by_low));
    }
    if (tile.rotates) {
      const vf c = load(cosines + j), s = load(sines + j);
      const vf first = load(packed + j), second = load(packed + kBlock + j);
      store(packed + j, first * c - second * s);
      store(packed + kBlock + j, first * s + second * c);
    }
  }
}

// Packs one value row at unit length. Returns the inverse of its length.
template <class S>
KEYSIFT_INLINE double pack_value(const S& shape, const keysift_problem& p, const keysift_segment& segment, int64_t kv, int64_t key,
                                 float* row) {
  read_row(row_of(p.v, p.dtype, segment.row, kv, key_row(p, segment, kv, key)), p.dtype, shape.value(), shape.value_pad(), row);
  const double inverse = inverse_length(row, shape.value_pad());
  scale_row(row, Factor(inverse), shape.value_pad());
  return inverse;
}

// Value rows of a block, not at unit length: the weights of the rows contain the inverse of their lengths.
struct ValueRows {
  const float* rows;
  int64_t stride;
  uint64_t non_finite;  // one bit for each row with a NaN or infinite element
  alignas(64) float inverse[kBlock];
};

// Reads the lengths of kBlock rows.
KEYSIFT_INLINE void measure_rows(int64_t pad, ValueRows* values) {
  values->non_finite = 0;
  constexpr float kLeast = static_cast<float>(kUnitEps * kUnitEps);
  for (int j = 0; j < kBlock; j += kLanes) {
    vf partial[kLanes];
    const float* row = values->rows + j * values->stride;
    KEYSIFT_UNROLL for (int l = 0; l < kLanes; ++l) {
      vf squares{};
      for (int64_t x = 0; x < pad; x += kLanes) squares += load(row + l * values->stride + x) * load(row + l * values->stride + x);
      partial[l] = squares;
    }
    float squares[kLanes];
    const vf all = sums(partial);
    store(squares, all);
    for (int l = 0; l < kLanes; ++l) values->inverse[j + l] = 1.0f / sqrtf(larger(squares[l], kLeast));
    const vi unbounded = ~(all < splat(__builtin_inff()));
    for (int l = 0; l < kLanes; ++l) {
      if (!unbounded[l]) continue;
      // The squares of large finite numbers overflow in fp32, but not in fp64. A NaN or infinite length has the inverse NaN or 0.
      const double inverse = inverse_length(row + l * values->stride, pad);
      if (!(inverse > 0)) values->non_finite |= uint64_t{1} << (j + l);
      values->inverse[j + l] = static_cast<float>(inverse);
    }
  }
}

// Reads the lengths of a block's value rows. Whole blocks of fp32 rows stay where they are; others are copied to `buffer`, and
// rows past the end become zeros.
template <class S>
KEYSIFT_INLINE void measure_values(const S& shape, const keysift_problem& p, const keysift_segment& segment, int64_t kv,
                                   int64_t block_key, int key_count, float* buffer, ValueRows* values) {
  const int64_t pad = shape.value_pad();
  const int64_t first = key_row(p, segment, kv, block_key);
  const bool contiguous = !p.ring || key_row(p, segment, kv, block_key + key_count - 1) - first == key_count - 1;
  if (p.dtype == KEYSIFT_F32 && pad == shape.value() && key_count == kBlock && contiguous) {
    values->rows = reinterpret_cast<const float*>(row_of(p.v, p.dtype, segment.row, kv, first));
    values->stride = p.v.row_stride;
  } else {
    for (int j = 0; j < key_count; ++j) {
      const int64_t row = key_row(p, segment, kv, block_key + j);
      read_row(row_of(p.v, p.dtype, segment.row, kv, row), p.dtype, shape.value(), pad, buffer + j * pad);
    }
    memset(buffer + key_count * pad, 0, static_cast<size_t>((kBlock - key_count) * pad) * 4);
    values->rows = buffer;
    values->stride = pad;
  }
  measure_rows(pad, values);
}

// One bit for each of these keys of a block whose value row is not finite. `row` is a buffer for one row.
template <class S>
KEYSIFT_INLINE uint64_t non_finite_values(const S& shape, const keysift_problem& p, const keysift_segment& segment, int64_t kv,
                                          int64_t block_key, KeySpan keys, float* row) {
  uint64_t bits = 0;
  for (int j = keys.from; j < keys.to; ++j) {
    read_row(row_of(p.v, p.dtype, segment.row, kv, key_row(p, segment, kv, block_key + j)), p.dtype, shape.value(),
             shape.value_pad(), row);
    vf differences{};  // x - x is 0, or NaN if x is not finite
    for (int64_t x = 0; x < shape.value_pad(); x += kLanes) differences += load(row + x) - load(row + x);
    if (!(sum(differences) == 0)) bits |= uint64_t{1} << j;
  }
  return bits;
}

// Packs queries [first, first + count) as unit, rotated rows; rows up to `room` become zeros.
template <class S>
KEYSIFT_INLINE void pack_queries(const S& shape, const Plan& plan, const Tile& tile, const keysift_segment& segment, int64_t h,
                                 int64_t first, int64_t count, int64_t room, float* rows) {
  const keysift_problem& p = plan.problem;
  const int64_t pad = shape.key_pad();
  const int64_t at = segment.offset + first;
  for (int64_t from = 0; from < count; from += kBatch) {
    const int64_t n = smaller<int64_t>(kBatch, count - from);
    float cosines[kBatch], sines[kBatch];
    if (tile.rotates) rotation_table(tile.turns_per_position, at + from, kBatch, cosines, sines);
    double squares[kBatch] = {};
    for (int64_t i = 0; i < n; ++i) {
      float* row = rows + (from + i) * pad;
      read_row(row_of(p.q, p.dtype, segment.row, h, segment.query + first + from + i), p.dtype, shape.key(), pad, row);
      squares[i] = row_square(row, pad);
    }
    const Factors factors(squares, [](double square) { return 1.0 / larger(sqrt(square), kUnitEps); });
    for (int64_t i = 0; i < n; ++i) {
      float* row = rows + (from + i) * pad;
      scale_row(row, factors.at(i), pad);
      if (tile.rotates) rotate(row, cosines[i], sines[i]);
    }
  }
  memset(rows + count * pad, 0, static_cast<size_t>((room - count) * pad) * 4);
}

template <int Columns>
KEYSIFT_INLINE void score_columns(const float* q, int64_t q_stride, const float* packed, int64_t width, int vector, vf threshold,
                                  float* scores, uint64_t* accepted) {
  vf s[kRows][Columns];
  product<Columns>(q, q_stride, packed + vector * kLanes, width, s);
  KEYSIFT_UNROLL for (int r = 0; r < kRows; ++r) {
    KEYSIFT_UNROLL for (int c = 0; c < Columns; ++c) {
      store(scores + r * kBlock + (vector + c) * kLanes, s[r][c]);
      accepted[r] |= static_cast<uint64_t>(bits_not_below(s[r][c], threshold)) << ((vector + c) * kLanes);
    }
  }
}

// Computes the scores of a batch against a block and, per query, one bit for each key that is visible and accepted. Scores of
// vectors that none of four queries sees are left unchanged. Returns the number of set bits.
template <class S>
KEYSIFT_INLINE int accept_pairs(const S& shape, const Tile& tile, const Placement& at, const float* q, const float* packed,
                         float* scores, uint64_t* accepted) {
  const vf threshold = splat(tile.threshold);
  int count = 0;
  for (int i = 0; i < kBatch; i += kRows) {
    uint64_t* p = accepted + i;
    p[0] = p[1] = p[2] = p[3] = 0;
    if (i >= at.queries) continue;
    // The first query sees the fewest later keys, the last query the fewest earlier ones. If both see the whole block, so do
    // the queries between them.
    const KeySpan first = at.visible(i), last = at.visible(i + kRows - 1);
    const bool whole = first.from == 0 && first.to == kBlock && last.from == 0 && last.to == kBlock;
    if (whole) {
      for (int v = 0; v < kVectors; v += kColumns) {
        score_columns<kColumns>(q + i * shape.key_pad(), shape.key_pad(), packed, shape.key(), v, threshold,
                                scores + i * kBlock, p);
      }
    } else {
      KeySpan visible[kRows];
      int from = kBlock, to = 0;
      for (int r = 0; r < kRows; ++r) {
        visible[r] = at.visible(i + r);
        if (visible[r].from == visible[r].to) continue;
        from = smaller(from, visible[r].from);
        to = larger(to, visible[r].to);
      }
      int v = from / kLanes;
      const int end = (to + kLanes - 1) / kLanes;
      for (; v + 2 <= end; v += 2) {
        score_columns<2>(q + i * shape.key_pad(), shape.key_pad(), packed, shape.key(), v, threshold, scores + i * kBlock, p);
      }
      for (; v < end; ++v) {
        score_columns<1>(q + i * shape.key_pad(), shape.key_pad(), packed, shape.key(), v, threshold, scores + i * kBlock, p);
      }
      for (int r = 0; r < kRows; ++r) p[r] &= bits_between(visible[r]);
    }
    for (int r = 0; r < kRows; ++r) count += __builtin_popcountll(p[r]);
  }
  return count;
}

constexpr int kMaxPairs = kBatch * kBlock + kLanes;

// Lists the accepted pairs as query * kBlock + key. Four are always written, valid or not: most rows have one or two pairs,
// and this avoids branches that cannot be predicted.
KEYSIFT_INLINE int list_pairs(const uint64_t* accepted, int32_t* pairs) {
  int n = 0;
  for (int i = 0; i < kBatch; ++i) {
    uint64_t bits = accepted[i];
    const int count = __builtin_popcountll(bits);
    const int32_t base = i * kBlock;
    int32_t* to = pairs + n;
    for (int x = 0; x < 4; ++x) {
      to[x] = base + (__builtin_ctzll(bits | (uint64_t{1} << 63)));
      bits &= bits - 1;
    }
    for (int x = 4; x < count; ++x) {
      to[x] = base + __builtin_ctzll(bits);
      bits &= bits - 1;
    }
    n += count;
  }
  for (int l = 0; l < kLanes; ++l) pairs[n + l] = 0;
  return n;
}

// Distances of listed pairs, as floats.
KEYSIFT_INLINE vf distances(const Placement& at, vi pairs) {
  const vi difference = (pairs >> 6) - (pairs & splat(kBlock - 1));
  return splat(static_cast<float>(at.first)) + to_float(difference);
}
KEYSIFT_INLINE vf distances(const Placement& at, int i, int key) {
  return splat(static_cast<float>(at.first + i - key)) - to_float(lane_numbers());
}

// max(1 - (1 - s) / acceptance, 0).
KEYSIFT_INLINE vf trim(const Tile& tile, vf score) {
  // s - 1 is exact near s = 1, so small acceptances lose no precision.
  const Factor inverse(tile.inverse);
  const vf below = score - splat(1.0f);
  return not_below_zero(splat(1.0f) + times(below, splat(inverse.high), splat(inverse.low)));
}

// The Softmask is cos^2 of half the angle, which is at most a quarter turn: no range reduction, and exactly 1 at d = 0.
struct HalfAngle {
  vf y, z;
  KEYSIFT_INLINE HalfAngle(const Tile& tile, vf distance) {
    const Factor step(tile.half_angle_step);
    y = times(distance, splat(step.high), splat(step.low));
    z = y * y;
  }
  KEYSIFT_INLINE vf cosine() const {
    vf c = splat(-1.14707456e-11f);
    c = c * z + splat(2.08767570e-9f);
    c = c * z + splat(-2.75573192e-7f);
    c = c * z + splat(2.48015873e-5f);
    c = c * z + splat(-1.38888889e-3f);
    c = c * z + splat(4.16666667e-2f);
    c = c * z + splat(-0.5f);
    return c * z + splat(1.0f);
  }
  KEYSIFT_INLINE vf sine() const {
    vf s = splat(1.60590438e-10f);
    s = s * z + splat(-2.50521084e-8f);
    s = s * z + splat(2.75573192e-6f);
    s = s * z + splat(-1.98412698e-4f);
    s = s * z + splat(8.33333333e-3f);
    s = s * z + splat(-1.66666667e-1f);
    return y * (s * z + splat(1.0f));
  }
};

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
