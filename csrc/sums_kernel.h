// Kernels of sums.h, forward and backward: a batch of queries against a block of keys at a time.
#pragma once

#include "blocks.h"
#include "exponential.h"
#include "products.h"
#include "rows.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

KEYSIFT_INLINE vf absolute(vf x) { return x < vf{} ? -x : x; }

// Whether the weights of a row are divided by a denominator.
template <int Kind>
constexpr bool kNormalised = Kind == KEYSIFT_RELU_EXP_NORMALISED || Kind == KEYSIFT_SOFTPICK;

template <int Kind>
constexpr bool kOfSoftmax = Kind == KEYSIFT_RECTIFIED || Kind == KEYSIFT_DECAYED;

// Whether the backward pass reads the log and <dout, out> of each query.
template <int Kind>
constexpr bool kReadsLog = kNormalised<Kind> || kOfSoftmax<Kind>;

// A score with weight zero and slope zero, for masked keys.
template <int Kind>
constexpr float kMaskedScore = Kind == KEYSIFT_SOFTPICK ? 0.0f : -1e30f;

// Whether scores of at most 0 change nothing, so that a block of them is skipped.
template <int Kind>
constexpr bool kSkipsNegative = Kind != KEYSIFT_SIGMOID && Kind != KEYSIFT_SOFTPICK && !kOfSoftmax<Kind>;

// How far a score may exceed the number that is subtracted in exponents before the sums are rescaled.
template <int Kind>
constexpr float kHeadroom = Kind == KEYSIFT_DECAYED ? 60.0f : 0.0f;

inline bool any_positive(const float* scores) {
  uint32_t bits = 0;
  for (int j = 0; j < kSumBatch * kBlock; j += kLanes) bits |= bits_not_below(load(scores + j), vf{});
  return bits != 0;
}

// Terms with a denominator are summed times 2^32, which cancels. Without it, subnormal scores would give subnormal sums, whose
// inverse is infinite.
constexpr float kTermScale = 0x1p32f;

// The weight of a score, for kinds without a denominator.
template <int Kind>
KEYSIFT_INLINE vf numerator(vf x) {
  if constexpr (Kind == KEYSIFT_RELU) return positive(x);
  if constexpr (Kind == KEYSIFT_RELU_SQUARED) return positive(x) * positive(x);
  if constexpr (Kind == KEYSIFT_RELU_EXP) return Exponential(positive(x)).minus_one;
  const vf e = Exponential(-absolute(x)).power, inverse = splat(1.0f) / (splat(1.0f) + e);
  return x < vf{} ? e * inverse : inverse;
}

// exp(-m) |exp(x) - 1|, without loss of digits near x = 0.
KEYSIFT_INLINE vf denominator(vf x, vf m) { return Exponential(positive(x) - m).power * -Exponential(-absolute(x)).minus_one; }

// exp(x), and 0 below -70: products of smaller weights would be subnormal numbers, which take many times longer.
KEYSIFT_INLINE vf decayed_weight(vf x) { return x < splat(-70.0f) ? vf{} : Exponential(x).power; }

// The weight of a score and its gradient: dp is <dout, v>, delta is <dout, out>.
template <int Kind>
KEYSIFT_INLINE void differentiate(vf x, vf dp, vf log, vf delta, vf* weight, vf* dx) {
  const vf none{};
  if constexpr (kNormalised<Kind>) {
    // exp(x - log) as a square. With a small denominator it would overflow although its product with a small factor does not.
    const vf root = Exponential((x - log) * splat(0.5f)).power;
    *weight = x > none ? root * (root * -Exponential(-absolute(x)).minus_one) : none;
    const vf below = Kind == KEYSIFT_SOFTPICK ? (x < none ? root * (root * delta) : none) : none;
    *dx = x > none ? root * (root * (dp - delta)) : below;
  } else if constexpr (Kind == KEYSIFT_DECAYED) {
    *weight = decayed_weight(x - log);
    *dx = *weight * (dp - delta);
  } else if constexpr (Kind == KEYSIFT_SIGMOID) {
    const vf e = Exponential(-absolute(x)).power, large = splat(1.0f) / (splat(1.0f) + e), small = e * large;
    *weight = x < none ? small : large;
    *dx = dp * large * small;
  } else if constexpr (Kind == KEYSIFT_RELU_EXP) {
    const Exponential e(positive(x));
    *weight = e.minus_one;
    *dx = x > none ? dp * e.power : none;
  } else {
    *weight = numerator<Kind>(x);
    *dx = x > none ? (Kind == KEYSIFT_RELU ? dp : dp * (x + x)) : none;
  }
}

// The weight of a score and its gradient for KEYSIFT_RECTIFIED, with the numbers that forward wrote.
KEYSIFT_INLINE void differentiate_rectified(vf x, vf dp, vf m, vf inverse, vf level, vf delta, vf* weight, vf* dx) {
  const vf none{}, p = Exponential(x - m).power * inverse;
  *weight = positive(p - level);
  *dx = p * ((p > level ? dp : none) - delta);
}

// (kSumBatch, kBlock) products of rows with a block that is packed as (width, kBlock).
inline __attribute__((noinline)) void products(const float* rows, int64_t stride, const float* packed, int64_t width,
                                               float* out) {
  for (int v = 0; v < kVectors; v += kColumns) {
    for (int i = 0; i < kSumBatch; i += kRows) {
      vf tile[kRows][kColumns];
      product<kColumns>(rows + i * stride, stride, packed + v * kLanes, width, tile);
      KEYSIFT_UNROLL for (int r = 0; r < kRows; ++r) {
        KEYSIFT_UNROLL for (int c = 0; c < kColumns; ++c) store(out + (i + r) * kBlock + (v + c) * kLanes, tile[r][c]);
      }
    }
  }
}

inline __attribute__((noinline)) void add_all(int64_t rows, int64_t width, int64_t count, const float* weight, int64_t row_step,
                                              int64_t step, const float* from, float* to) {
  add_products(rows, width, count, weight, row_step, step, from, width, to);
}

// Rows [first, first + count) of a tensor times a factor, padded with zeros, and rows of zeros up to `padded_count`.
inline void pack_rows(const keysift_view& view, const keysift_segment& segment, int64_t head, int64_t first, int64_t count,
                      int64_t padded_count, int64_t width, int64_t pad, float factor, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    read_row(row_of(view, KEYSIFT_F32, segment.row, head, first + i), KEYSIFT_F32, width, pad, to + i * pad);
    if (factor == 1.0f) continue;
    for (int64_t x = 0; x < pad; x += kLanes) store(to + i * pad + x, load(to + i * pad + x) * splat(factor));
  }
  memset(to + count * pad, 0, static_cast<size_t>((padded_count - count) * pad) * 4);
}

inline void transpose(const float* rows, int64_t pad, int64_t width, float* packed) {
  for (int64_t x = 0; x < width; ++x) {
    for (int j = 0; j < kBlock; ++j) packed[x * kBlock + j] = rows[j * pad + x];
  }
}

// Adds the shift of each query to its scores, and masks the keys that it does not see.
inline void mask_scores(const Placement& at, const float* shift, float masked, float* scores) {
  if (shift) {
    for (int i = 0; i < at.queries; ++i) {
      for (int j = 0; j < kBlock; j += kLanes) store(scores + i * kBlock + j, load(scores + i * kBlock + j) + splat(shift[i]));
    }
  }
  if (at.visible(0).to == kBlock && at.queries == kSumBatch && at.visible(kSumBatch - 1).from == 0) return;
  for (int i = 0; i < kSumBatch; ++i) {
    const KeySpan seen = at.visible(i);
    for (int j = 0; j < seen.from; ++j) scores[i * kBlock + j] = masked;
    for (int j = seen.to; j < kBlock; ++j) scores[i * kBlock + j] = masked;
  }
}

// For KEYSIFT_DECAYED: C of a row of the problem.
inline const double* decay_of(const keysift_sums_problem& p, const keysift_segment& segment, int64_t head) {
  return p.decay + (segment.row * p.heads + head) * p.keys + segment.key;
}

// Adds C_i - C_j to the scores of queries [first, first + kSumBatch) against the block of keys from `key`. Both differences and
// sums of C are in fp64, because C grows with the text. C_i is the same for all keys of a row and cancels.
inline void add_decay(const keysift_sums_problem& p, const keysift_segment& segment, int64_t head, int64_t first, int64_t key,
                      float* scores) {
  const double* decay = decay_of(p, segment, head);
  double of_keys[kBlock] = {};
  memcpy(of_keys, decay + key, static_cast<size_t>(keys_in_block(segment, key)) * sizeof(double));
  for (int i = 0; i < kSumBatch; ++i) {
    const double of_query = decay[clamp<int64_t>(segment.offset + first + i, 0, segment.keys - 1)];
    for (int j = 0; j < kBlock; j += kLanes / 2) {
      vd each;
      memcpy(&each, of_keys + j, sizeof each);
      vh x;
      memcpy(&x, scores + i * kBlock + j, sizeof x);
      x += __builtin_convertvector(of_query - each, vh);
      memcpy(scores + i * kBlock + j, &x, sizeof x);
    }
  }
}

// For KEYSIFT_DECAYED: the first key of the segment that any of these queries reads.
inline int64_t first_read(const keysift_sums_problem& p, const keysift_segment& segment, int64_t head, int64_t first, int64_t count) {
  const int64_t* of_query = p.first_key + (segment.row * p.heads + head) * p.queries + segment.query;
  int64_t key = segment.keys;
  for (int64_t i = first; i < smaller(first + count, segment.queries); ++i) key = smaller(key, of_query[i] - segment.key);
  return larger<int64_t>(key, 0);
}

// Distances 0 .. span-1 are visible.
inline int64_t span_of(const keysift_sums_problem& p) { return p.window > 0 ? p.window : kUnlimited; }

struct SumsSizes {
  int64_t key, value, key_pad, value_pad;
  explicit SumsSizes(const keysift_sums_problem& p)
      : key(p.key_width), value(p.value_width), key_pad(Shape<0, 0>::pad(key)), value_pad(Shape<0, 0>::pad(value)) {}
};

struct SumsForwardScratch {
  float *q, *sum, *max_score, *rows, *keys, *values, *scores;
  double* total;
  SumsForwardScratch(const SumsSizes& size, ScratchLayout* layout)
      : q(layout->floats(kSumChunk * size.key_pad)),
        sum(layout->floats(kSumChunk * size.value_pad)),
        max_score(layout->floats(kSumChunk)),
        rows(layout->floats(kBlock * size.key_pad)),
        keys(layout->floats(kBlock * size.key_pad)),
        values(layout->floats(kBlock * size.value_pad)),
        scores(layout->floats(kSumBatch * kBlock)),
        total(reinterpret_cast<double*>(layout->floats(2 * kSumChunk))) {}
};

template <int Kind>
struct SumsForward : SumsForwardScratch {
  const SumsPlan& plan;
  const keysift_segment& segment;
  const int64_t head;
  const SumsSizes size;

  SumsForward(const SumsPlan& plan_, const keysift_segment& segment_, int64_t h, const SumsSizes& sizes, ScratchLayout* layout)
      : SumsForwardScratch(sizes, layout), plan(plan_), segment(segment_), head(h), size(sizes) {}

  // Rescales the sums so far if this row has a larger score than the maximum.
  KEYSIFT_INLINE void rescale(const float* row, int64_t query) {
    const vf threshold = splat(max_score[query] + kHeadroom<Kind>);
    uint32_t above = 0;
    for (int j = 0; j < kBlock; j += kLanes) {
      const vf x = load(row + j);
      above |= bits_not_below(x, threshold);
    }
    if (above == 0) return;
    float largest = max_score[query];
    for (int j = 0; j < kBlock; ++j) largest = larger(largest, row[j]);
    const float factor = expf(max_score[query] - largest);
    max_score[query] = largest;
    total[query] *= static_cast<double>(factor);
    float* sums = sum + query * size.value_pad;
    for (int64_t x = 0; x < size.value_pad; x += kLanes) store(sums + x, load(sums + x) * splat(factor));
  }

  // Turns scores into weights, times exp(-m) if they have a denominator; `first` is the batch's first query in the chunk.
  void weigh(int64_t first) {
    for (int i = 0; i < kSumBatch; ++i) {
      float* row = scores + i * kBlock;
      if constexpr (kNormalised<Kind>) {
        rescale(row, first + i);
        const vf m = splat(max_score[first + i]);
        vf added{};
        for (int j = 0; j < kBlock; j += kLanes) {
          const vf x = load(row + j), each = denominator(x, m) * splat(kTermScale), above = x > vf{} ? each : vf{};
          added += Kind == KEYSIFT_SOFTPICK ? each : above;
          store(row + j, above);
        }
        total[first + i] += static_cast<double>(keysift::KEYSIFT_VARIANT::sum<>(added));
      } else if constexpr (Kind == KEYSIFT_DECAYED) {
        rescale(row, first + i);
        const vf m = splat(max_score[first + i]);
        vf added{};
        for (int j = 0; j < kBlock; j += kLanes) {
          const vf e = decayed_weight(load(row + j) - m);
          added += e;
          store(row + j, e);
        }
        total[first + i] += static_cast<double>(keysift::KEYSIFT_VARIANT::sum<>(added));
      } else {
        for (int j = 0; j < kBlock; j += kLanes) store(row + j, numerator<Kind>(load(row + j)));
      }
    }
  }

  void run(int64_t first, int64_t count) {
    const keysift_sums_problem& p = plan.problem;
    const int64_t padded_count = (count + kSumBatch - 1) / kSumBatch * kSumBatch;
    const int64_t query = segment.query + first, at = segment.offset + first;
    const float* shift = p.shift ? p.shift + (segment.row * p.heads + head) * p.queries + query : nullptr;
    pack_rows(p.q, segment, head, query, count, padded_count, size.key, size.key_pad, p.scale, q);
    memset(sum, 0, static_cast<size_t>(padded_count * size.value_pad) * 4);
    memset(max_score, 0, static_cast<size_t>(padded_count) * 4);
    memset(total, 0, static_cast<size_t>(padded_count) * 8);
    const int64_t to = smaller<int64_t>(segment.keys, at + count), span = span_of(p);
    int64_t from = larger<int64_t>(at - span + 1, 0);
    int64_t read_from[kSumChunk / kSumBatch] = {};  // of each batch
    if constexpr (Kind == KEYSIFT_DECAYED) {
      memcpy(max_score, shift, static_cast<size_t>(count) * 4);
      shift = nullptr;
      for (int64_t i = 0; i < count; i += kSumBatch) read_from[i / kSumBatch] = first_read(p, segment, head, first + i, kSumBatch);
      from = larger(from, first_read(p, segment, head, first, count));
    }
    for (int64_t key = from / kBlock * kBlock; key < to; key += kBlock) {
      const int key_count = keys_in_block(segment, key);
      pack_rows(p.k, segment, head, segment.key + key, key_count, kBlock, size.key, size.key_pad, 1.0f, rows);
      transpose(rows, size.key_pad, size.key, keys);
      pack_rows(p.v, segment, head, segment.key + key, key_count, kBlock, size.value, size.value_pad, 1.0f, values);
      const int64_t last = smaller<int64_t>(count, key + kBlock - 1 + span - at);  // queries before it see the block
      for (int64_t i = clamp<int64_t>(key - at, 0, padded_count) / kSumBatch * kSumBatch; i < last; i += kSumBatch) {
        const Placement placement{at + i - key, span, static_cast<int>(smaller<int64_t>(kSumBatch, count - i)), key_count};
        if (key + kBlock <= read_from[i / kSumBatch]) continue;
        products(q + i * size.key_pad, size.key_pad, keys, size.key, scores);
        if constexpr (Kind == KEYSIFT_DECAYED) add_decay(p, segment, head, first + i, key, scores);
        mask_scores(placement, shift ? shift + i : nullptr, kMaskedScore<Kind>, scores);
        if (kSkipsNegative<Kind> && !any_positive(scores)) continue;
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
      if constexpr (kNormalised<Kind>) {
        const double m = static_cast<double>(max_score[i]);
        const double scale = static_cast<double>(kTermScale);
        const double denominator_sum = total[i] + scale * static_cast<double>(p.eps) * exp(-m);
        log = denominator_sum > 0 ? static_cast<float>(m + ::log(denominator_sum / scale)) : __builtin_inff();
        scale_row(row, Factor(denominator_sum > 0 ? 1 / denominator_sum : 0), size.value_pad);
      } else if constexpr (Kind == KEYSIFT_DECAYED) {
        log = total[i] > 0 ? static_cast<float>(static_cast<double>(max_score[i]) + ::log(total[i])) : __builtin_inff();
        scale_row(row, Factor(total[i] > 0 ? 1 / total[i] : 0), size.value_pad);
      }
      if (plan.log) plan.log[(segment.row * p.heads + head) * p.queries + query + i] = log;
      write_row(row, KEYSIFT_F32, size.value, const_cast<char*>(row_of(plan.out, KEYSIFT_F32, segment.row, head, query + i)));
    }
  }
};

struct SumsBackwardScratch {
  float *key_rows, *keys, *values, *dk, *dv, *q, *dout, *scores, *dp;
  SumsBackwardScratch(const SumsSizes& size, ScratchLayout* layout)
      : key_rows(layout->floats(kBlock * size.key_pad)),
        keys(layout->floats(kBlock * size.key_pad)),
        values(layout->floats(kBlock * size.value_pad)),
        dk(layout->floats(kBlock * size.key_pad)),
        dv(layout->floats(kBlock * size.value_pad)),
        q(layout->floats(kSumBatch * size.key_pad)),
        dout(layout->floats(kSumBatch * size.value_pad)),
        scores(layout->floats(kSumBatch * kBlock)),
        dp(layout->floats(kSumBatch * kBlock)) {}
};

template <int Kind>
struct SumsBackward : SumsBackwardScratch {
  const SumsPlan& plan;
  const SumsTask& task;
  const keysift_segment& segment;
  const SumsSizes size;
  float log[kSumBatch];
  float inverse[kSumBatch], level[kSumBatch];  // of KEYSIFT_RECTIFIED
  float columns[kBlock];                       // of KEYSIFT_DECAYED: sums of dx over queries

  SumsBackward(const SumsPlan& plan_, const SumsTask& task_, const SumsSizes& sizes, ScratchLayout* layout)
      : SumsBackwardScratch(sizes, layout), plan(plan_), task(task_), segment(*task_.segment), size(sizes) {}

  int64_t row_number(int64_t query) const {
    return (segment.row * plan.problem.heads + task.head) * plan.problem.queries + segment.query + query;
  }

  void load_batch(int64_t first, int64_t count) {
    const keysift_sums_problem& p = plan.problem;
    pack_rows(p.q, segment, task.head, segment.query + first, count, kSumBatch, size.key, size.key_pad, p.scale, q);
    pack_rows(plan.dout, segment, task.head, segment.query + first, count, kSumBatch, size.value, size.value_pad, 1.0f, dout);
    for (int i = 0; i < kSumBatch; ++i) {
      log[i] = kReadsLog<Kind> && i < count ? plan.log[row_number(first + i)] : 0.0f;
      if constexpr (Kind == KEYSIFT_RECTIFIED) {
        const int64_t rows = p.batch * p.heads * p.queries;
        inverse[i] = i < count ? plan.log[rows + row_number(first + i)] : 0.0f;
        level[i] = i < count ? p.shift[row_number(first + i)] : 0.0f;
      }
    }
  }

  // <dout, out> of every query, summed in the order of `product`, so that the two cancel exactly if one key has all the weight.
  void compute_deltas() {
    for (int64_t i = 0; i < segment.queries; ++i) {
      const auto row = [&](const keysift_view& view) {
        return reinterpret_cast<const float*>(row_of(view, KEYSIFT_F32, segment.row, task.head, segment.query + i));
      };
      const float *out = row(plan.out), *dout = row(plan.dout);
      float total = 0;
      for (int64_t x = 0; x < size.value; ++x) total += dout[x] * out[x];
      task.delta[i] = total;
    }
  }

  // Turns scores into weights, and dp into the gradient of the scores.
  void weigh(int64_t first, int64_t count) {
    for (int i = 0; i < kSumBatch; ++i) {
      const vf row_log = splat(log[i]), row_delta = splat(task.delta[first + i]);
      vf slopes{};
      for (int j = i * kBlock; j < (i + 1) * kBlock; j += kLanes) {
        vf weight, dx;
        if constexpr (Kind == KEYSIFT_RECTIFIED) {
          differentiate_rectified(load(scores + j), load(dp + j), row_log, splat(inverse[i]), splat(level[i]), row_delta,
                                  &weight, &dx);
        } else {
          differentiate<Kind>(load(scores + j), load(dp + j), row_log, row_delta, &weight, &dx);
        }
        store(scores + j, weight);
        store(dp + j, dx);
        slopes += dx;
        if constexpr (Kind == KEYSIFT_DECAYED) store(columns + j - i * kBlock, load(columns + j - i * kBlock) + dx);
      }
      if (i < count) task.dshift[first + i] += sum(slopes);
    }
  }

  void run() {
    const keysift_sums_problem& p = plan.problem;
    const float* shift = p.shift && !kOfSoftmax<Kind> ? p.shift + row_number(0) : nullptr;
    const int64_t span = span_of(p);
    if (kReadsLog<Kind>) compute_deltas();
    for (int64_t key = task.first_key; key < task.last_key; key += kBlock) {
      const int key_count = keys_in_block(segment, key);
      // dv is not in use yet and serves as the buffer for packing values.
      pack_rows(p.k, segment, task.head, segment.key + key, key_count, kBlock, size.key, size.key_pad, 1.0f, key_rows);
      pack_rows(p.v, segment, task.head, segment.key + key, key_count, kBlock, size.value, size.value_pad, 1.0f, dv);
      transpose(key_rows, size.key_pad, size.key, keys);
      transpose(dv, size.value_pad, size.value, values);
      memset(dk, 0, static_cast<size_t>(kBlock * size.key_pad) * 4);
      memset(dv, 0, static_cast<size_t>(kBlock * size.value_pad) * 4);
      memset(columns, 0, sizeof columns);
      const int64_t first = clamp<int64_t>(key - segment.offset, 0, segment.queries) / kSumBatch * kSumBatch;
      const int64_t last = smaller<int64_t>(segment.queries, key + kBlock - 1 + span - segment.offset);
      for (int64_t i = first; i < last; i += kSumBatch) {
        const int count = static_cast<int>(smaller<int64_t>(kSumBatch, segment.queries - i));
        if constexpr (Kind == KEYSIFT_DECAYED) {
          if (key + kBlock <= first_read(p, segment, task.head, i, count)) continue;
        }
        load_batch(i, count);
        products(q, size.key_pad, keys, size.key, scores);
        if constexpr (Kind == KEYSIFT_DECAYED) add_decay(p, segment, task.head, i, key, scores);
        const Placement placement{segment.offset + i - key, span, count, key_count};
        mask_scores(placement, shift ? shift + i : nullptr, kMaskedScore<Kind>, scores);
        if (kSkipsNegative<Kind> && !any_positive(scores)) continue;
        products(dout, size.value_pad, values, size.value, dp);
        weigh(i, count);
        add_all(kBlock, size.value_pad, kSumBatch, scores, 1, kBlock, dout, dv);
        add_all(kBlock, size.key_pad, kSumBatch, dp, 1, kBlock, q, dk);
        add_all(kSumBatch, size.key_pad, kBlock, dp, kBlock, 1, key_rows, task.dq + i * size.key_pad);
      }
      for (int j = 0; j < key_count; ++j) {
        const int64_t at = segment.key + key + j;
        const keysift_sums_gradients& to = plan.gradients;
        write_row(dk + j * size.key_pad, KEYSIFT_F32, size.key,
                  const_cast<char*>(row_of(to.dk, KEYSIFT_F32, segment.row, task.head, at)));
        write_row(dv + j * size.value_pad, KEYSIFT_F32, size.value,
                  const_cast<char*>(row_of(to.dv, KEYSIFT_F32, segment.row, task.head, at)));
        if constexpr (Kind == KEYSIFT_DECAYED) to.dkeys[(segment.row * p.heads + task.head) * p.keys + at] = columns[j];
      }
    }
  }
};

inline int64_t sums_forward_scratch(const SumsPlan& plan) {
  ScratchLayout count{nullptr};
  SumsForwardScratch(SumsSizes(plan.problem), &count);
  return count.bytes;
}

inline int64_t sums_backward_scratch(const SumsPlan& plan) {
  ScratchLayout count{nullptr};
  SumsBackwardScratch(SumsSizes(plan.problem), &count);
  return count.bytes;
}

template <int Kind>
void sums_forward(const SumsPlan& plan, const keysift_segment& segment, int64_t head, int64_t first, char* scratch) {
  ScratchLayout layout{scratch};
  SumsForward<Kind> task(plan, segment, head, SumsSizes(plan.problem), &layout);
  task.run(first, smaller<int64_t>(kSumChunk, segment.queries - first));
}

template <int Kind>
void sums_backward(const SumsPlan& plan, const SumsTask& task, char* scratch) {
  ScratchLayout layout{scratch};
  SumsBackward<Kind>(plan, task, SumsSizes(plan.problem), &layout).run();
}

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
