// The pieces both directions share: packing a block of keys, judging a batch of queries against it, and the two small
// matrix products.
#pragma once

#include "rows.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

constexpr int kRows = 4;  // rows held in registers by both products
// Vectors held per row: 4 x 4 accumulators fill half of AVX-512's 32 registers, 4 x 2 half of the 16 elsewhere.
constexpr int kColumns = kLanes == 16 ? 4 : 2;
// Rows held where only one vector of each is left, so that enough sums are under way at a time.
constexpr int kTallRows = 8;
constexpr int kVectors = kBlock / kLanes;

// Key and value width, known at compile time where positive.
template <int KeyWidth, int ValueWidth>
struct Shape {
  int64_t key_width, value_width;
  explicit Shape(const keysift_problem& p) : key_width(p.key_width), value_width(p.value_width) {}
  KEYSIFT_INLINE static int64_t pad(int64_t width) { return (width + kLanes - 1) / kLanes * kLanes; }
  KEYSIFT_INLINE int64_t key() const { return KeyWidth ? KeyWidth : key_width; }
  KEYSIFT_INLINE int64_t value() const { return ValueWidth ? ValueWidth : value_width; }
  KEYSIFT_INLINE int64_t key_pad() const { return pad(key()); }
  KEYSIFT_INLINE int64_t value_pad() const { return pad(value()); }
};

// Hands out parts of one allocation, each on a cache line. From NULL on it only counts, so the same lines that lay the
// parts out also say how many bytes they need.
struct Carver {
  char* start;
  int64_t bytes = 0;
  KEYSIFT_INLINE float* floats(int64_t count) {
    float* part = start ? reinterpret_cast<float*>(start + bytes) : nullptr;
    bytes += (count * 4 + 63) / 64 * 64;
    return part;
  }
};

// Keys [from, to) of a block.
struct KeySpan {
  int from, to;
};

// How many keys of the block exist, the others being past the end of the piece.
KEYSIFT_INLINE int existing(const keysift_piece& piece, int64_t block_key) {
  return static_cast<int>(clamp<int64_t>(piece.keys - block_key, 0, kBlock));
}

// The row of k and v where a key of a piece lies.
KEYSIFT_INLINE int64_t key_row(const keysift_problem& p, const keysift_piece& piece, int64_t kv, int64_t key) {
  const int64_t at = piece.key + key;
  return p.ring ? p.ring[2 * kv] + (p.ring_first[piece.row] + at) % p.ring[2 * kv + 1] : at;
}

// Unit, turned keys of a block of a piece, transposed to (key width, kBlock): those that are needed, in whole vectors, the
// rest left as it was. Keys that do not exist become zeros.
// staging holds kBlock rows.
template <class S>
KEYSIFT_INLINE void pack_keys(const S& shape, const Plan& plan, const Tile& tile, const keysift_piece& piece, int64_t kv,
                              int64_t block_key, KeySpan needed, float* staging, float* packed) {
  const keysift_problem& p = plan.problem;
  const int64_t width = shape.key();
  const float* rows;
  int64_t stride = p.k.row_stride;
  const int there = existing(piece, block_key);
  const int from = needed.from / kLanes * kLanes, to = (needed.to + kLanes - 1) / kLanes * kLanes;
  const int64_t first = key_row(p, piece, kv, block_key + from);
  const bool side_by_side = !p.ring || key_row(p, piece, kv, block_key + to - 1) - first == to - 1 - from;
  if (p.dtype == KEYSIFT_F32 && to <= there && stride < (1 << 24) && side_by_side) {
    rows = reinterpret_cast<const float*>(row_of(p.k, p.dtype, piece.row, kv, first));
  } else {
    memset(staging, 0, static_cast<size_t>((to - from) * width) * 4);
    for (int j = from; j < smaller(to, there); ++j) {
      const int64_t row = key_row(p, piece, kv, block_key + j);
      read_row(row_of(p.k, p.dtype, piece.row, kv, row), p.dtype, width, width, staging + (j - from) * width);
    }
    rows = staging;
    stride = width;
  }
  float cosines[kBlock], sines[kBlock];
  if (tile.rotates) turn_table(tile.turns_per_position, block_key + from, to - from, cosines + from, sines + from);
  const vi step = lane_numbers() * all(static_cast<int32_t>(stride));
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

// One unit value row. Returns the inverse of its length.
template <class S>
KEYSIFT_INLINE double pack_value(const S& shape, const keysift_problem& p, const keysift_piece& piece, int64_t kv, int64_t key,
                                 float* row) {
  read_row(row_of(p.v, p.dtype, piece.row, kv, key_row(p, piece, kv, key)), p.dtype, shape.value(), shape.value_pad(), row);
  const double inverse = inverse_length(row, shape.value_pad());
  scale_row(row, Factor(inverse), shape.value_pad());
  return inverse;
}

// Unit value rows of a block; rows that do not exist become zeros. Returns false if any value is not finite: such
// a row may still be refused by every query, so products that multiply it by zero are not allowed.
template <class S>
KEYSIFT_INLINE bool pack_values(const S& shape, const Plan& plan, const keysift_piece& piece, int64_t kv, int64_t block_key,
                                int there, float* rows) {
  const int64_t pad = shape.value_pad();
  bool finite = true;
  for (int j = 0; j < kBlock; ++j) {
    if (j >= there) {
      memset(rows + j * pad, 0, static_cast<size_t>(pad) * 4);
    } else {
      // An infinite or NaN element makes the length infinite or NaN, and its inverse 0 or NaN.
      finite &= pack_value(shape, plan.problem, piece, kv, block_key + j, rows + j * pad) > 0;
    }
  }
  return finite;
}

// Unit, turned queries [first, first + count) as rows; the rest up to `room` become zeros.
template <class S>
KEYSIFT_INLINE void pack_queries(const S& shape, const Plan& plan, const Tile& tile, const keysift_piece& piece, int64_t h,
                                 int64_t first, int64_t count, int64_t room, float* rows) {
  const keysift_problem& p = plan.problem;
  const int64_t pad = shape.key_pad();
  const int64_t at = piece.offset + first;
  for (int64_t from = 0; from < count; from += kBatch) {
    const int64_t n = smaller<int64_t>(kBatch, count - from);
    float cosines[kBatch], sines[kBatch];
    if (tile.rotates) turn_table(tile.turns_per_position, at + from, kBatch, cosines, sines);
    for (int64_t i = 0; i < n; ++i) {
      float* row = rows + (from + i) * pad;
      read_row(row_of(p.q, p.dtype, piece.row, h, piece.query + first + from + i), p.dtype, shape.key(), pad, row);
      scale_row(row, Factor(inverse_length(row, pad)), pad);
      if (tile.rotates) turn(row, cosines[i], sines[i]);
    }
  }
  memset(rows + count * pad, 0, static_cast<size_t>((room - count) * pad) * 4);
}

// out[r][c] = sum_x a[r][x] packed[x][c] for kRows rows and Columns vectors of a block.
template <int Columns>
KEYSIFT_INLINE void product(const float* a, int64_t a_stride, const float* packed, int64_t width, vf (&out)[kRows][Columns]) {
  KEYSIFT_UNROLL for (int r = 0; r < kRows; ++r) {
    KEYSIFT_UNROLL for (int c = 0; c < Columns; ++c) out[r][c] = vf{};
  }
  for (int64_t x = 0; x < width; ++x) {
    vf b[Columns];
    KEYSIFT_UNROLL for (int c = 0; c < Columns; ++c) b[c] = load(packed + x * kBlock + c * kLanes);
    KEYSIFT_UNROLL for (int r = 0; r < kRows; ++r) {
      const vf one = all(a[r * a_stride + x]);
      KEYSIFT_UNROLL for (int c = 0; c < Columns; ++c) out[r][c] += one * b[c];
    }
  }
}

// to[r][:] += sum_p weight[r * row_step + p * step] from[p][:] for Rows rows and Columns vectors.
template <int Rows, int Columns>
KEYSIFT_INLINE void add_products_tile(int64_t count, const float* weight, int64_t row_step, int64_t step, const float* from,
                                      int64_t from_stride, float* to, int64_t to_stride) {
  // From zero, then added: sums of sums lose less than one long sum.
  vf acc[Rows][Columns];
  KEYSIFT_UNROLL for (int r = 0; r < Rows; ++r) {
    KEYSIFT_UNROLL for (int c = 0; c < Columns; ++c) acc[r][c] = vf{};
  }
  for (int64_t p = 0; p < count; ++p) {
    vf b[Columns];
    KEYSIFT_UNROLL for (int c = 0; c < Columns; ++c) b[c] = load(from + p * from_stride + c * kLanes);
    KEYSIFT_UNROLL for (int r = 0; r < Rows; ++r) {
      const vf one = all(weight[r * row_step + p * step]);
      KEYSIFT_UNROLL for (int c = 0; c < Columns; ++c) acc[r][c] += one * b[c];
    }
  }
  KEYSIFT_UNROLL for (int r = 0; r < Rows; ++r) {
    KEYSIFT_UNROLL for (int c = 0; c < Columns; ++c) {
      float* at = to + r * to_stride + c * kLanes;
      store(at, load(at) + acc[r][c]);
    }
  }
}

// The same for any multiple of kTallRows rows and any padded width.
KEYSIFT_INLINE void add_products(int64_t rows, int64_t width, int64_t count, const float* weight, int64_t row_step,
                                 int64_t step, const float* from, float* to) {
  int64_t x = 0;
  for (; x + kColumns * kLanes <= width; x += kColumns * kLanes) {
    for (int64_t r = 0; r < rows; r += kRows) {
      add_products_tile<kRows, kColumns>(count, weight + r * row_step, row_step, step, from + x, width, to + r * width + x, width);
    }
  }
  for (; x < width; x += kLanes) {
    for (int64_t r = 0; r < rows; r += kTallRows) {
      add_products_tile<kTallRows, 1>(count, weight + r * row_step, row_step, step, from + x, width, to + r * width + x, width);
    }
  }
}

// Where a batch of queries stands against a block of keys.
struct Standing {
  int64_t first;      // distance of the batch's first query from the block's first key
  int64_t span;       // distances seen
  int queries;        // queries of the batch that exist
  int keys;           // keys of the block that exist
  KEYSIFT_INLINE KeySpan seen(int i) const {
    if (i >= queries) return {0, 0};
    const int64_t from = clamp<int64_t>(first + i - span + 1, 0, kBlock);
    const int64_t to = clamp<int64_t>(first + i + 1, 0, keys);
    return {static_cast<int>(from), static_cast<int>(larger(from, to))};
  }
};

// The one question asked before a block's scores are computed. Today integers answer it (causality and the window); a
// bound on the score of a whole block belongs here too.
KEYSIFT_INLINE bool may_pass(const Standing& at) {
  return at.first + at.queries - 1 >= 0 && at.first - at.span + 1 < at.keys && at.keys > 0;
}

KEYSIFT_INLINE uint64_t bits_between(KeySpan s) {
  const uint64_t below_to = s.to >= 64 ? ~uint64_t{0} : (uint64_t{1} << s.to) - 1;
  const uint64_t below_from = s.from >= 64 ? ~uint64_t{0} : (uint64_t{1} << s.from) - 1;
  return below_to & ~below_from;
}

template <int Columns>
KEYSIFT_INLINE void judge_columns(const float* q, int64_t q_stride, const float* packed, int64_t width, int vector, vf threshold,
                                  float* scores, uint64_t* passed) {
  vf s[kRows][Columns];
  product<Columns>(q, q_stride, packed + vector * kLanes, width, s);
  KEYSIFT_UNROLL for (int r = 0; r < kRows; ++r) {
    KEYSIFT_UNROLL for (int c = 0; c < Columns; ++c) {
      store(scores + r * kBlock + (vector + c) * kLanes, s[r][c]);
      passed[r] |= static_cast<uint64_t>(bits_not_below(s[r][c], threshold)) << ((vector + c) * kLanes);
    }
  }
}

// Scores of a batch against a block, and per query one bit for each key that is seen and accepted. Scores of vectors
// no query of four sees are left as they were. Returns how many bits are set.
template <class S>
KEYSIFT_INLINE int judge(const S& shape, const Tile& tile, const Standing& at, const float* q, const float* packed,
                         float* scores, uint64_t* passed) {
  const vf threshold = all(tile.threshold);
  int count = 0;
  for (int i = 0; i < kBatch; i += kRows) {
    uint64_t* p = passed + i;
    p[0] = p[1] = p[2] = p[3] = 0;
    if (i >= at.queries) continue;
    // The first query sees least far ahead, the last least far back: if both see all, so do those between.
    const KeySpan first = at.seen(i), last = at.seen(i + kRows - 1);
    const bool whole = first.from == 0 && first.to == kBlock && last.from == 0 && last.to == kBlock;
    if (whole) {
      for (int v = 0; v < kVectors; v += kColumns) {
        judge_columns<kColumns>(q + i * shape.key_pad(), shape.key_pad(), packed, shape.key(), v, threshold,
                                scores + i * kBlock, p);
      }
    } else {
      KeySpan seen[kRows];
      int from = kBlock, to = 0;
      for (int r = 0; r < kRows; ++r) {
        seen[r] = at.seen(i + r);
        if (seen[r].from == seen[r].to) continue;
        from = smaller(from, seen[r].from);
        to = larger(to, seen[r].to);
      }
      int v = from / kLanes;
      const int end = (to + kLanes - 1) / kLanes;
      for (; v + 2 <= end; v += 2) {
        judge_columns<2>(q + i * shape.key_pad(), shape.key_pad(), packed, shape.key(), v, threshold, scores + i * kBlock, p);
      }
      for (; v < end; ++v) {
        judge_columns<1>(q + i * shape.key_pad(), shape.key_pad(), packed, shape.key(), v, threshold, scores + i * kBlock, p);
      }
      for (int r = 0; r < kRows; ++r) p[r] &= bits_between(seen[r]);
    }
    for (int r = 0; r < kRows; ++r) count += __builtin_popcountll(p[r]);
  }
  return count;
}

constexpr int kMostPairs = kBatch * kBlock + kLanes;

// Writes the accepted pairs as query * kBlock + key. Four are written before looking whether there are so many: at
// the usual one or two a row this keeps the loop free of branches that cannot be predicted.
KEYSIFT_INLINE int list_pairs(const uint64_t* passed, int32_t* pairs) {
  int n = 0;
  for (int i = 0; i < kBatch; ++i) {
    uint64_t bits = passed[i];
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
KEYSIFT_INLINE vf distances(const Standing& at, vi pairs) {
  const vi apart = (pairs >> 6) - (pairs & all(kBlock - 1));
  return all(static_cast<float>(at.first)) + to_float(apart);
}
KEYSIFT_INLINE vf distances(const Standing& at, int i, int key) {
  return all(static_cast<float>(at.first + i - key)) - to_float(lane_numbers());
}

KEYSIFT_INLINE vf trim(const Tile& tile, vf score) {
  // s - 1 is exact near s = 1, so small acceptances lose nothing.
  const Factor inverse(tile.inverse);
  const vf below = score - all(1.0f);
  return not_below_zero(all(1.0f) + times(below, all(inverse.high), all(inverse.low)));
}

// The Softmask is cos^2 of half the angle, which is at most a quarter turn: no range reduction, and exactly 1 at d = 0.
struct HalfAngle {
  vf y, z;
  KEYSIFT_INLINE HalfAngle(const Tile& tile, vf distance) {
    const Factor step(tile.quarter_turn);
    y = times(distance, all(step.high), all(step.low));
    z = y * y;
  }
  KEYSIFT_INLINE vf cosine() const {
    vf c = all(-1.14707456e-11f);
    c = c * z + all(2.08767570e-9f);
    c = c * z + all(-2.75573192e-7f);
    c = c * z + all(2.48015873e-5f);
    c = c * z + all(-1.38888889e-3f);
    c = c * z + all(4.16666667e-2f);
    c = c * z + all(-0.5f);
    return c * z + all(1.0f);
  }
  KEYSIFT_INLINE vf sine() const {
    vf s = all(1.60590438e-10f);
    s = s * z + all(-2.50521084e-8f);
    s = s * z + all(2.75573192e-6f);
    s = s * z + all(-1.98412698e-4f);
    s = s * z + all(8.33333333e-3f);
    s = s * z + all(-1.66666667e-1f);
    return y * (s * z + all(1.0f));
  }
};

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
