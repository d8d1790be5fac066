// Kernels of sticks.h. A block of kBlock queries meets kSumBatch keys at a time, with queries in the lanes, so that the sum over
// newer keys is a running sum of vectors.
#pragma once

#include "sums_kernel.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

// Below this, exp gives zero, so that no older key has a weight.
constexpr double kNothingLeft = -88.0;

// b = sigmoid(x), 1 - b, and -log(1 - b) = log(1 + exp(x)).
struct Share {
  vf taken, left, spent;
  KEYSIFT_INLINE explicit Share(vf x) {
    const vf one = splat(1.0f), e = Exponential(-absolute(x)).power;
    // log(1 + e) = 2 artanh(s), s = e / (2 + e) <= 1/3; one division serves both.
    const vf above = one + e, inverse = one / (above * (above + one)), large = inverse * (above + one);
    const vf s = e * inverse * above, z = s * s;
    vf p = splat(1.0f / 13);
    p = p * z + splat(1.0f / 11);
    p = p * z + splat(1.0f / 9);
    p = p * z + splat(1.0f / 7);
    p = p * z + splat(1.0f / 5);
    p = p * z + splat(1.0f / 3);
    taken = x < vf{} ? e * large : large;
    left = x < vf{} ? large : e * large;
    spent = positive(x) + (s + s) * (p * z + one);
  }
};

struct StickSizes {
  int64_t key, value, key_pad, value_pad;
  explicit StickSizes(const keysift_sticks_problem& p)
      : key(p.key_width), value(p.value_width), key_pad(Shape<0, 0>::pad(key)), value_pad(Shape<0, 0>::pad(value)) {}
};

// Buffers of both passes: a block of queries, and a batch of keys and values.
struct StickScratch {
  float *q, *packed_q, *keys, *values, *scores;
  double* log_rest;
  StickScratch(const StickSizes& size, ScratchLayout* layout)
      : q(layout->floats(kBlock * size.key_pad)),
        packed_q(layout->floats(kBlock * size.key_pad)),
        keys(layout->floats(kSumBatch * size.key_pad)),
        values(layout->floats(kSumBatch * size.value_pad)),
        scores(layout->floats(kSumBatch * kBlock)),
        log_rest(reinterpret_cast<double*>(layout->floats(2 * kBlock))) {}
};

struct StickTaskBase : StickScratch {
  const StickPlan& plan;
  const keysift_segment& segment;
  const int64_t head;
  const StickSizes size;

  StickTaskBase(const StickPlan& plan_, const keysift_segment& segment_, int64_t h, const StickSizes& sizes, ScratchLayout* layout)
      : StickScratch(sizes, layout), plan(plan_), segment(segment_), head(h), size(sizes) {}

  int64_t span() const { return plan.problem.window > 0 ? plan.problem.window : kUnlimited; }
  int64_t row_number(int64_t query) const {
    return (segment.row * plan.problem.heads + head) * plan.problem.queries + segment.query + query;
  }
  // Keys [first_key, last_key) that queries [first, first + count) see; empty if last_key <= first_key.
  int64_t first_key(int64_t first) const { return larger<int64_t>(segment.offset + first - span() + 1, 0); }
  int64_t last_key(int64_t first, int64_t count) const { return smaller<int64_t>(segment.keys, segment.offset + first + count); }

  void load_queries(int64_t first, int64_t count) {
    const keysift_sticks_problem& p = plan.problem;
    pack_rows(p.q, segment, head, segment.query + first, count, kBlock, size.key, size.key_pad, p.scale, q);
    transpose(q, size.key_pad, size.key, packed_q);
  }

  // Keys and values [key, key + kSumBatch), and their masked scores: (kSumBatch, kBlock).
  void load_keys(int64_t key, int64_t first, int64_t count) {
    const keysift_sticks_problem& p = plan.problem;
    const int64_t rows = smaller<int64_t>(kSumBatch, segment.keys - key);
    pack_rows(p.k, segment, head, segment.key + key, rows, kSumBatch, size.key, size.key_pad, 1.0f, keys);
    pack_rows(p.v, segment, head, segment.key + key, rows, kSumBatch, size.value, size.value_pad, 1.0f, values);
    products(keys, size.key_pad, packed_q, size.key, scores);
    const int64_t at = segment.offset + first - key;  // distance of the first query from the first key
    if (rows == kSumBatch && count == kBlock && at >= kSumBatch - 1 && at + kBlock - 1 < span()) return;
    for (int64_t j = 0; j < kSumBatch; ++j) {
      for (int64_t i = 0; i < kBlock; ++i) {
        const int64_t distance = at + i - j;
        if (j >= rows || i >= count || distance < 0 || distance >= span()) scores[j * kBlock + i] = -1e30f;
      }
    }
  }
};

struct StickForward : StickTaskBase {
  float* sum;
  StickForward(const StickPlan& plan_, const keysift_segment& segment_, int64_t h, const StickSizes& sizes, ScratchLayout* layout)
      : StickTaskBase(plan_, segment_, h, sizes, layout), sum(layout->floats(kBlock * sizes.value_pad)) {}

  // Turns scores into weights, newest key first. Returns whether any query has something left.
  bool weigh() {
    double most = kNothingLeft;
    for (int c = 0; c < kBlock; c += kLanes) {
      vf before, spent{};
      for (int l = 0; l < kLanes; ++l) before[l] = static_cast<float>(log_rest[c + l]);
      for (int j = kSumBatch - 1; j >= 0; --j) {
        float* at = scores + j * kBlock + c;
        const Share share(load(at));
        store(at, share.taken * Exponential(before - spent).power);
        spent += share.spent;
      }
      for (int l = 0; l < kLanes; ++l) most = larger(most, log_rest[c + l] -= static_cast<double>(spent[l]));
    }
    return most > kNothingLeft;
  }

  void run(int64_t first, int64_t count) {
    load_queries(first, count);
    memset(sum, 0, static_cast<size_t>(kBlock * size.value_pad) * 4);
    for (int i = 0; i < kBlock; ++i) log_rest[i] = i < count ? 0.0 : 2 * kNothingLeft;
    const int64_t from = first_key(first) / kSumBatch * kSumBatch, to = last_key(first, count);
    int64_t key = (to + kSumBatch - 1) / kSumBatch * kSumBatch;
    bool left = true;
    while (left && key > from) {
      key -= kSumBatch;
      load_keys(key, first, count);
      left = weigh();
      add_all(kBlock, size.value_pad, kSumBatch, scores, 1, kBlock, values, sum);
    }
    for (int64_t i = 0; i < count; ++i) {
      plan.log_rest[row_number(first + i)] = log_rest[i];
      plan.first_key[row_number(first + i)] = key;
      write_row(sum + i * size.value_pad, KEYSIFT_F32, size.value,
                const_cast<char*>(row_of(plan.out, KEYSIFT_F32, segment.row, head, segment.query + first + i)));
    }
  }
};

struct StickBackward : StickTaskBase {
  const StickTask& task;
  float *dout, *packed_dout, *dp, *spent, *dq, *older;
  StickBackward(const StickPlan& plan_, const StickTask& task_, const StickSizes& sizes, ScratchLayout* layout)
      : StickTaskBase(plan_, *task_.segment, task_.head, sizes, layout),
        task(task_),
        dout(layout->floats(kBlock * sizes.value_pad)),
        packed_dout(layout->floats(kBlock * sizes.value_pad)),
        dp(layout->floats(kSumBatch * kBlock)),
        spent(layout->floats(kSumBatch * kBlock)),
        dq(layout->floats(kBlock * sizes.key_pad)),
        older(layout->floats(kBlock)) {}

  // Turns scores into weights, and dp into the gradient of the scores. The batch is one of the forward pass: its sum of logarithms
  // is added back, so that log_rest is that of the newer keys again. Then the gradient runs from the oldest key:
  // dx_l = (1 - b_l) w_l g_l - b_l (sum_{j < l} w_j g_j + rest drest), g = dp.
  void weigh() {
    for (int c = 0; c < kBlock; c += kLanes) {
      vf total{}, before, sum_older = load(older + c);
      float taken[kSumBatch * kLanes], left[kSumBatch * kLanes];
      for (int j = kSumBatch - 1; j >= 0; --j) {
        const Share share(load(scores + j * kBlock + c));
        store(taken + j * kLanes, share.taken);
        store(left + j * kLanes, share.left);
        store(spent + j * kBlock + c, total);
        total += share.spent;
      }
      for (int l = 0; l < kLanes; ++l) before[l] = static_cast<float>(log_rest[c + l] += static_cast<double>(total[l]));
      for (int j = 0; j < kSumBatch; ++j) {
        const int64_t at = j * kBlock + c;
        const vf b = load(taken + j * kLanes), w = b * Exponential(before - load(spent + at)).power, wg = w * load(dp + at);
        store(scores + at, w);
        store(dp + at, load(left + j * kLanes) * wg - b * sum_older);
        sum_older += wg;
      }
      store(older + c, sum_older);
    }
  }

  void run_block(int64_t first, int64_t count) {
    load_queries(first, count);
    pack_rows(plan.dout, segment, head, segment.query + first, count, kBlock, size.value, size.value_pad, 1.0f, dout);
    transpose(dout, size.value_pad, size.value, packed_dout);
    memset(dq, 0, static_cast<size_t>(kBlock * size.key_pad) * 4);
    for (int i = 0; i < kBlock; ++i) {
      log_rest[i] = i < count ? plan.log_rest[row_number(first + i)] : 2 * kNothingLeft;
      older[i] = i < count ? static_cast<float>(exp(log_rest[i])) * plan.drest[row_number(first + i)] : 0.0f;
    }
    const int64_t to = last_key(first, count);
    for (int64_t key = plan.first_key[row_number(first)]; key < to; key += kSumBatch) {
      load_keys(key, first, count);
      products(values, size.value_pad, packed_dout, size.value, dp);
      weigh();
      add_all(kSumBatch, size.value_pad, kBlock, scores, kBlock, 1, dout, task.dv + key * size.value_pad);
      add_all(kSumBatch, size.key_pad, kBlock, dp, kBlock, 1, q, task.dk + key * size.key_pad);
      add_all(kBlock, size.key_pad, kSumBatch, dp, 1, kBlock, keys, dq);
    }
    for (int64_t i = 0; i < count; ++i) {
      float* row = dq + i * size.key_pad;
      for (int64_t x = 0; x < size.key_pad; x += kLanes) store(row + x, load(row + x) * splat(plan.problem.scale));
      write_row(row, KEYSIFT_F32, size.key,
                const_cast<char*>(row_of(plan.gradients.dq, KEYSIFT_F32, segment.row, head, segment.query + first + i)));
    }
  }

  void run() {
    for (int64_t first = task.first_block * kBlock; first < segment.queries; first += task.block_step * kBlock) {
      run_block(first, smaller<int64_t>(kBlock, segment.queries - first));
    }
  }
};

inline int64_t sticks_scratch(const StickPlan& plan) {
  ScratchLayout count{nullptr};
  static const keysift_segment segment{};
  static const StickTask task{&segment, 0, 0, 1, nullptr, nullptr};
  StickBackward(plan, task, StickSizes(plan.problem), &count);
  return count.bytes;
}

inline void sticks_forward(const StickPlan& plan, const keysift_segment& segment, int64_t head, int64_t first, char* scratch) {
  ScratchLayout layout{scratch};
  StickForward task(plan, segment, head, StickSizes(plan.problem), &layout);
  task.run(first, smaller<int64_t>(kBlock, segment.queries - first));
}

inline void sticks_backward(const StickPlan& plan, const StickTask& task, char* scratch) {
  ScratchLayout layout{scratch};
  StickBackward(plan, task, StickSizes(plan.problem), &layout).run();
}

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
