// Sums over keys in one pass, forward and backward: a batch of queries against a block of keys at a time.
#pragma once

#include "blocks.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

KEYSIFT_INLINE vf size(vf x) { return x < vf{} ? -x : x; }

// exp(x) and exp(x) - 1, each to rounding, from exp(x) = 2^n exp(r) with |r| <= ln 2 / 2. Below -87 exp(x) is 0, above 88
// it is infinite.
struct Exponential {
  vf power, minus_one;
  KEYSIFT_INLINE explicit Exponential(vf x) {
    const vf low = all(-87.0f), high = all(88.0f);
    const vf inside = x < low ? low : (x > high ? high : x);
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the last bits.
    const vf round = all(12582912.0f);
    const vf shifted = inside * all(1.44269504f) + round;
    const vf n = shifted - round;
    const vf r = inside - n * all(0.693359375f) - n * all(-2.12194440e-4f);
    vf p = all(1.98412698e-4f);
    p = p * r + all(1.38888889e-3f);
    p = p * r + all(8.33333333e-3f);
    p = p * r + all(4.16666667e-2f);
    p = p * r + all(1.66666667e-1f);
    p = p * r + all(0.5f);
    p = p * r * r + r;
    const vf scale = (vf)(((vi)shifted << 23) + all(int32_t{127 << 23}));
    const vf infinite = all(__builtin_inff());
    power = x < low ? vf{} : (x > high ? infinite : scale + scale * p);
    minus_one = x > high ? infinite : scale * p + (scale - all(1.0f));
  }
};

// Kinds whose weights are shares of a row.
template <int Kind>
constexpr bool kShares = Kind == KEYSIFT_RELU_EXP_SHARE || Kind == KEYSIFT_SOFTPICK;

// A score that weighs nothing and has no slope, for keys a query does not see.
template <int Kind>
constexpr float kNoScore = Kind == KEYSIFT_SOFTPICK ? 0.0f : -1e30f;

// The weight of a score, for kinds without a denominator.
template <int Kind>
KEYSIFT_INLINE vf top(vf x) {
  if constexpr (Kind == KEYSIFT_RELU) return positive(x);
  if constexpr (Kind == KEYSIFT_RELU_SQUARED) return positive(x) * positive(x);
  if constexpr (Kind == KEYSIFT_RELU_EXP) return Exponential(positive(x)).minus_one;
  const vf e = Exponential(-size(x)).power, inverse = all(1.0f) / (all(1.0f) + e);
  return x < vf{} ? e * inverse : inverse;
}

// exp(-m) |exp(x) - 1|, which keeps its digits where x is near 0.
KEYSIFT_INLINE vf bottom(vf x, vf m) { return Exponential(positive(x) - m).power * -Exponential(-size(x)).minus_one; }

// The weight of a score and the slope of its gradient: dp is <dout, v>, delta is <dout, out>.
template <int Kind>
KEYSIFT_INLINE void differentiate(vf x, vf dp, vf log, vf delta, vf* weight, vf* dx) {
  const vf none{};
  if constexpr (kShares<Kind>) {
    const vf share = Exponential(x - log).power;
    *weight = x > none ? share * -Exponential(-size(x)).minus_one : none;
    const vf below = Kind == KEYSIFT_SOFTPICK ? (x < none ? share * delta : none) : none;
    *dx = x > none ? share * (dp - delta) : below;
  } else if constexpr (Kind == KEYSIFT_SIGMOID) {
    const vf e = Exponential(-size(x)).power, large = all(1.0f) / (all(1.0f) + e), small = e * large;
    *weight = x < none ? small : large;
    *dx = dp * large * small;
  } else if constexpr (Kind == KEYSIFT_RELU_EXP) {
    const Exponential e(positive(x));
    *weight = e.minus_one;
    *dx = x > none ? dp * e.power : none;
  } else {
    *weight = top<Kind>(x);
    *dx = x > none ? (Kind == KEYSIFT_RELU ? dp : dp * (x + x)) : none;
  }
}

// (kSumBatch, kBlock) products of rows with a block that is packed as (width, kBlock).
inline __attribute__((noinline)) void products(const float* rows, int64_t stride, const float* packed, int64_t width,
                                               float* out) {
  for (int v = 0; v < kVectors; v += kColumns) {
    for (int i = 0; i < kSumBatch; i += kRows) {
      vf found[kRows][kColumns];
      product<kColumns>(rows + i * stride, stride, packed + v * kLanes, width, found);
      KEYSIFT_UNROLL for (int r = 0; r < kRows; ++r) {
        KEYSIFT_UNROLL for (int c = 0; c < kColumns; ++c) store(out + (i + r) * kBlock + (v + c) * kLanes, found[r][c]);
      }
    }
  }
}

inline __attribute__((noinline)) void add_all(int64_t rows, int64_t width, int64_t count, const float* weight, int64_t row_step,
                                              int64_t step, const float* from, float* to) {
  add_products(rows, width, count, weight, row_step, step, from, to);
}

// Rows [first, first + count) of a tensor times a factor, padded with zeros, and rows of zeros up to `room`.
inline void pack_rows(const keysift_view& view, const keysift_piece& piece, int64_t head, int64_t first, int64_t count,
                      int64_t room, int64_t width, int64_t pad, float factor, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    read_row(row_of(view, KEYSIFT_F32, piece.row, head, first + i), KEYSIFT_F32, width, pad, to + i * pad);
    if (factor == 1.0f) continue;
    for (int64_t x = 0; x < pad; x += kLanes) store(to + i * pad + x, load(to + i * pad + x) * all(factor));
  }
  memset(to + count * pad, 0, static_cast<size_t>((room - count) * pad) * 4);
}

inline void transpose(const float* rows, int64_t pad, int64_t width, float* packed) {
  for (int64_t x = 0; x < width; ++x) {
    for (int j = 0; j < kBlock; ++j) packed[x * kBlock + j] = rows[j * pad + x];
  }
}

// Adds the shift of each query to its scores, and sets those of keys it does not see.
inline void settle(const Standing& at, const float* shift, float unseen, float* scores) {
  if (shift) {
    for (int i = 0; i < at.queries; ++i) {
      for (int j = 0; j < kBlock; j += kLanes) store(scores + i * kBlock + j, load(scores + i * kBlock + j) + all(shift[i]));
    }
  }
  if (at.seen(0).to == kBlock && at.queries == kSumBatch) return;
  for (int i = 0; i < kSumBatch; ++i) {
    for (int j = at.seen(i).to; j < kBlock; ++j) scores[i * kBlock + j] = unseen;
  }
}

struct SumsSizes {
  int64_t key, value, key_pad, value_pad;
  explicit SumsSizes(const keysift_sums_problem& p)
      : key(p.key_width), value(p.value_width), key_pad(Shape<0, 0>::pad(key)), value_pad(Shape<0, 0>::pad(value)) {}
};

struct SumsForwardScratch {
  float *q, *sum, *most, *rows, *keys, *values, *scores;
  double* total;
  SumsForwardScratch(const SumsSizes& size, Carver* carve)
      : q(carve->floats(kSumChunk * size.key_pad)),
        sum(carve->floats(kSumChunk * size.value_pad)),
        most(carve->floats(kSumChunk)),
        rows(carve->floats(kBlock * size.key_pad)),
        keys(carve->floats(kBlock * size.key_pad)),
        values(carve->floats(kBlock * size.value_pad)),
        scores(carve->floats(kSumBatch * kBlock)),
        total(reinterpret_cast<double*>(carve->floats(2 * kSumChunk))) {}
};

template <int Kind>
struct SumsForward : SumsForwardScratch {
  const SumsPlan& plan;
  const keysift_piece& piece;
  const int64_t head;
  const SumsSizes size;

  SumsForward(const SumsPlan& all, const keysift_piece& one, int64_t h, const SumsSizes& sizes, Carver* carve)
      : SumsForwardScratch(sizes, carve), plan(all), piece(one), head(h), size(sizes) {}

  // Sums so far are carried to a larger maximum.
  KEYSIFT_INLINE void raise(const float* row, int64_t query) {
    vf found = all(most[query]);
    uint32_t above = 0;
    for (int j = 0; j < kBlock; j += kLanes) {
      const vf x = load(row + j);
      above |= bits_not_below(x, found);
    }
    if (above == 0) return;
    float largest = most[query];
    for (int j = 0; j < kBlock; ++j) largest = larger(largest, row[j]);
    const float factor = expf(most[query] - largest);
    most[query] = largest;
    total[query] *= static_cast<double>(factor);
    float* sums = sum + query * size.value_pad;
    for (int64_t x = 0; x < size.value_pad; x += kLanes) store(sums + x, load(sums + x) * all(factor));
  }

  // Scores become weights, times exp(-m) where they are shares; `first` is the batch's first query of the chunk.
  void weigh(int64_t first) {
    for (int i = 0; i < kSumBatch; ++i) {
      float* row = scores + i * kBlock;
      if constexpr (kShares<Kind>) {
        raise(row, first + i);
        const vf m = all(most[first + i]);
        vf added{};
        for (int j = 0; j < kBlock; j += kLanes) {
          const vf x = load(row + j), each = bottom(x, m), above = x > vf{} ? each : vf{};
          added += Kind == KEYSIFT_SOFTPICK ? each : above;
          store(row + j, above);
        }
        total[first + i] += static_cast<double>(keysift::KEYSIFT_VARIANT::sum<>(added));
      } else {
        for (int j = 0; j < kBlock; j += kLanes) store(row + j, top<Kind>(load(row + j)));
      }
    }
  }

  void run(int64_t first, int64_t count) {
    const keysift_sums_problem& p = plan.problem;
    const int64_t room = (count + kSumBatch - 1) / kSumBatch * kSumBatch;
    const int64_t query = piece.query + first, at = piece.offset + first;
    const float* shift = p.shift ? p.shift + (piece.row * p.heads + head) * p.queries + query : nullptr;
    pack_rows(p.q, piece, head, query, count, room, size.key, size.key_pad, p.scale, q);
    memset(sum, 0, static_cast<size_t>(room * size.value_pad) * 4);
    memset(most, 0, static_cast<size_t>(room) * 4);
    memset(total, 0, static_cast<size_t>(room) * 8);
    const int64_t to = smaller<int64_t>(piece.keys, at + count);
    for (int64_t key = 0; key < to; key += kBlock) {
      const int there = existing(piece, key);
      pack_rows(p.k, piece, head, piece.key + key, there, kBlock, size.key, size.key_pad, 1.0f, rows);
      transpose(rows, size.key_pad, size.key, keys);
      pack_rows(p.v, piece, head, piece.key + key, there, kBlock, size.value, size.value_pad, 1.0f, values);
      for (int64_t i = clamp<int64_t>(key - at, 0, room) / kSumBatch * kSumBatch; i < count; i += kSumBatch) {
        const Standing standing{at + i - key, kEverything, static_cast<int>(smaller<int64_t>(kSumBatch, count - i)), there};
        products(q + i * size.key_pad, size.key_pad, keys, size.key, scores);
        settle(standing, shift ? shift + i : nullptr, kNoScore<Kind>, scores);
        weigh(i);
        add_all(kSumBatch, size.value_pad, kBlock, scores, kBlock, 1, values, sum + i * size.value_pad);
      }
    }
    finish(query, count);
  }

  void finish(int64_t query, int64_t count) {
    const keysift_sums_problem& p = plan.problem;
    for (int64_t i = 0; i < count; ++i) {
      float* row = sum + i * size.value_pad;
      float log = 0;
      if constexpr (kShares<Kind>) {
        const double m = static_cast<double>(most[i]);
        const double whole = total[i] + static_cast<double>(p.rest) * exp(-m);
        log = whole > 0 ? static_cast<float>(m + ::log(whole)) : __builtin_inff();
        scale_row(row, Factor(whole > 0 ? 1 / whole : 0), size.value_pad);
      }
      if (plan.log) plan.log[(piece.row * p.heads + head) * p.queries + query + i] = log;
      write_row(row, KEYSIFT_F32, size.value, const_cast<char*>(row_of(plan.out, KEYSIFT_F32, piece.row, head, query + i)));
    }
  }
};

struct SumsBackwardScratch {
  float *key_rows, *keys, *values, *dk, *dv, *q, *dout, *scores, *dp;
  SumsBackwardScratch(const SumsSizes& size, Carver* carve)
      : key_rows(carve->floats(kBlock * size.key_pad)),
        keys(carve->floats(kBlock * size.key_pad)),
        values(carve->floats(kBlock * size.value_pad)),
        dk(carve->floats(kBlock * size.key_pad)),
        dv(carve->floats(kBlock * size.value_pad)),
        q(carve->floats(kSumBatch * size.key_pad)),
        dout(carve->floats(kSumBatch * size.value_pad)),
        scores(carve->floats(kSumBatch * kBlock)),
        dp(carve->floats(kSumBatch * kBlock)) {}
};

template <int Kind>
struct SumsBackward : SumsBackwardScratch {
  const SumsPlan& plan;
  const SumsTask& task;
  const keysift_piece& piece;
  const SumsSizes size;
  float log[kSumBatch];

  SumsBackward(const SumsPlan& all, const SumsTask& one, const SumsSizes& sizes, Carver* carve)
      : SumsBackwardScratch(sizes, carve), plan(all), task(one), piece(*one.piece), size(sizes) {}

  int64_t row_number(int64_t query) const {
    return (piece.row * plan.problem.heads + task.head) * plan.problem.queries + piece.query + query;
  }

  void open_batch(int64_t first, int64_t count) {
    const keysift_sums_problem& p = plan.problem;
    pack_rows(p.q, piece, task.head, piece.query + first, count, kSumBatch, size.key, size.key_pad, p.scale, q);
    pack_rows(plan.dout, piece, task.head, piece.query + first, count, kSumBatch, size.value, size.value_pad, 1.0f, dout);
    for (int i = 0; i < kSumBatch; ++i) {
      log[i] = kShares<Kind> && i < count ? plan.log[row_number(first + i)] : 0.0f;
    }
  }

  // <dout, out> of every query, added up in the order of `product`: where one key has all the weight the two cancel.
  void find_deltas() {
    for (int64_t i = 0; i < piece.queries; ++i) {
      const auto row = [&](const keysift_view& view) {
        return reinterpret_cast<const float*>(row_of(view, KEYSIFT_F32, piece.row, task.head, piece.query + i));
      };
      const float *out = row(plan.out), *dout = row(plan.dout);
      float total = 0;
      for (int64_t x = 0; x < size.value; ++x) total += dout[x] * out[x];
      task.delta[i] = total;
    }
  }

  // Scores become weights, and dp becomes the gradient of the scores.
  void weigh(int64_t first, int64_t count) {
    for (int i = 0; i < kSumBatch; ++i) {
      const vf its_log = all(log[i]), its_delta = all(task.delta[first + i]);
      vf slopes{};
      for (int j = i * kBlock; j < (i + 1) * kBlock; j += kLanes) {
        vf weight, dx;
        differentiate<Kind>(load(scores + j), load(dp + j), its_log, its_delta, &weight, &dx);
        store(scores + j, weight);
        store(dp + j, dx);
        slopes += dx;
      }
      if (i < count) task.dshift[first + i] += sum(slopes);
    }
  }

  void run() {
    const keysift_sums_problem& p = plan.problem;
    const float* shift = p.shift ? p.shift + row_number(0) : nullptr;
    if (kShares<Kind>) find_deltas();
    for (int64_t key = task.first_key; key < task.last_key; key += kBlock) {
      const int there = existing(piece, key);
      // Values are packed by way of dv, which is not in use yet.
      pack_rows(p.k, piece, task.head, piece.key + key, there, kBlock, size.key, size.key_pad, 1.0f, key_rows);
      pack_rows(p.v, piece, task.head, piece.key + key, there, kBlock, size.value, size.value_pad, 1.0f, dv);
      transpose(key_rows, size.key_pad, size.key, keys);
      transpose(dv, size.value_pad, size.value, values);
      memset(dk, 0, static_cast<size_t>(kBlock * size.key_pad) * 4);
      memset(dv, 0, static_cast<size_t>(kBlock * size.value_pad) * 4);
      const int64_t first = clamp<int64_t>(key - piece.offset, 0, piece.queries) / kSumBatch * kSumBatch;
      for (int64_t i = first; i < piece.queries; i += kSumBatch) {
        const int count = static_cast<int>(smaller<int64_t>(kSumBatch, piece.queries - i));
        open_batch(i, count);
        products(q, size.key_pad, keys, size.key, scores);
        settle({piece.offset + i - key, kEverything, count, there}, shift ? shift + i : nullptr, kNoScore<Kind>, scores);
        products(dout, size.value_pad, values, size.value, dp);
        weigh(i, count);
        add_all(kBlock, size.value_pad, kSumBatch, scores, 1, kBlock, dout, dv);
        add_all(kBlock, size.key_pad, kSumBatch, dp, 1, kBlock, q, dk);
        add_all(kSumBatch, size.key_pad, kBlock, dp, kBlock, 1, key_rows, task.dq + i * size.key_pad);
      }
      for (int j = 0; j < there; ++j) {
        const int64_t at = piece.key + key + j;
        const keysift_sums_gradients& to = plan.gradients;
        write_row(dk + j * size.key_pad, KEYSIFT_F32, size.key,
                  const_cast<char*>(row_of(to.dk, KEYSIFT_F32, piece.row, task.head, at)));
        write_row(dv + j * size.value_pad, KEYSIFT_F32, size.value,
                  const_cast<char*>(row_of(to.dv, KEYSIFT_F32, piece.row, task.head, at)));
      }
    }
  }
};

inline int64_t sums_forward_scratch(const SumsPlan& plan) {
  Carver count{nullptr};
  SumsForwardScratch(SumsSizes(plan.problem), &count);
  return count.bytes;
}

inline int64_t sums_backward_scratch(const SumsPlan& plan) {
  Carver count{nullptr};
  SumsBackwardScratch(SumsSizes(plan.problem), &count);
  return count.bytes;
}

template <int Kind>
void sums_forward(const SumsPlan& plan, const keysift_piece& piece, int64_t head, int64_t first, char* scratch) {
  Carver carve{scratch};
  SumsForward<Kind>(plan, piece, head, SumsSizes(plan.problem), &carve).run(first, smaller<int64_t>(kSumChunk, piece.queries - first));
}

template <int Kind>
void sums_backward(const SumsPlan& plan, const SumsTask& task, char* scratch) {
  Carver carve{scratch};
  SumsBackward<Kind>(plan, task, SumsSizes(plan.problem), &carve).run();
}

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
