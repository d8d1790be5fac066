// Forward pass of KEYSIFT_RECTIFIED: the scores of a batch of queries are kept until their normaliser is known.
#pragma once

#include "sums_kernel.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

struct RectifiedScratch {
  float *q, *sum, *kept, *rows, *keys, *values, *scores, *mask, *maxima;
  RectifiedScratch(const SumsSizes& size, int64_t blocks, ScratchLayout* layout)
      : q(layout->floats(kSumChunk * size.key_pad)),
        sum(layout->floats(kSumBatch * size.value_pad)),
        kept(layout->floats(kSumBatch * size.value_pad)),
        rows(layout->floats(kBlock * size.key_pad)),
        keys(layout->floats(blocks * kBlock * size.key_pad)),
        values(layout->floats(blocks * kBlock * size.value_pad)),
        scores(layout->floats(blocks * kSumBatch * kBlock)),
        mask(layout->floats(kSumBatch * kBlock)),
        maxima(layout->floats(kSumBatch * kLanes)) {}
};

struct RectifiedForward : RectifiedScratch {
  const SumsPlan& plan;
  const keysift_segment& segment;
  const int64_t head;
  const SumsSizes size;

  RectifiedForward(const SumsPlan& plan_, const keysift_segment& segment_, int64_t h, const SumsSizes& sizes, int64_t blocks,
                   ScratchLayout* layout)
      : RectifiedScratch(sizes, blocks, layout), plan(plan_), segment(segment_), head(h), size(sizes) {}

  float* block_scores(int64_t block) const { return scores + block * kSumBatch * kBlock; }

  // The scores of a batch against blocks [from, to), and the maximum of each row, lane by lane.
  void score(int64_t i, int count, int64_t at, int64_t first_key, int64_t from, int64_t to) {
    for (int x = 0; x < kSumBatch; ++x) store(maxima + x * kLanes, splat(kMaskedScore<KEYSIFT_RECTIFIED>));
    for (int64_t b = from; b < to; ++b) {
      const int64_t key = first_key + b * kBlock;
      float* block = block_scores(b);
      products(q + i * size.key_pad, size.key_pad, keys + b * kBlock * size.key_pad, size.key, block);
      const Placement placement{at + i - key, span_of(plan.problem), count, keys_in_block(segment, key)};
      mask_scores(placement, nullptr, kMaskedScore<KEYSIFT_RECTIFIED>, block);
      for (int r = 0; r < kSumBatch; ++r) {
        vf top = load(maxima + r * kLanes);
        for (int j = 0; j < kBlock; j += kLanes) {
          const vf x = load(block + r * kBlock + j);
          top = x > top ? x : top;
        }
        store(maxima + r * kLanes, top);
      }
    }
  }

  // Turns scores into exp(x - m). Returns m and 1 / sum of a row; 0 and 0 for a row with no visible keys.
  void exponentiate(int r, int64_t from, int64_t to, float* m, float* inverse) {
    float top = maxima[r * kLanes];
    for (int l = 1; l < kLanes; ++l) top = larger(top, maxima[r * kLanes + l]);
    *m = top = top > kMaskedScore<KEYSIFT_RECTIFIED> ? top : 0.0f;
    double total = 0;
    for (int64_t b = from; b < to; ++b) {
      float* row = block_scores(b) + r * kBlock;
      vf added{};
      for (int j = 0; j < kBlock; j += kLanes) {
        const vf e = Exponential(load(row + j) - splat(top)).power;
        added += e;
        store(row + j, e);
      }
      total += static_cast<double>(keysift::KEYSIFT_VARIANT::sum<>(added));
    }
    *inverse = total > 0 ? static_cast<float>(1 / total) : 0.0f;
  }

  // Turns exponentials of a block into weights, and sets the mask of positive ones. Returns whether there are any.
  bool weigh(float* block, const float* inverse, const float* level) {
    uint32_t any = 0;
    for (int r = 0; r < kSumBatch; ++r) {
      for (int j = r * kBlock; j < (r + 1) * kBlock; j += kLanes) {
        const vf w = positive(load(block + j) * splat(inverse[r]) - splat(level[r]));
        any |= bits_not_below(w, vf{});
        store(block + j, w);
        store(mask + j, w > vf{} ? splat(1.0f) : vf{});
      }
    }
    return any != 0;
  }

  void run(int64_t first, int64_t count) {
    const keysift_sums_problem& p = plan.problem;
    const int64_t padded_count = (count + kSumBatch - 1) / kSumBatch * kSumBatch;
    const int64_t query = segment.query + first, at = segment.offset + first, span = span_of(p);
    const int64_t row = (segment.row * p.heads + head) * p.queries + query, rows_total = p.batch * p.heads * p.queries;
    pack_rows(p.q, segment, head, query, count, padded_count, size.key, size.key_pad, p.scale, q);
    const int64_t end = clamp<int64_t>(at + count, 0, segment.keys);
    const int64_t first_key = clamp<int64_t>(at - span + 1, 0, end) / kBlock * kBlock;
    const int64_t blocks = (end - first_key + kBlock - 1) / kBlock;
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t key = first_key + b * kBlock;
      const int in_block = keys_in_block(segment, key);
      pack_rows(p.k, segment, head, segment.key + key, in_block, kBlock, size.key, size.key_pad, 1.0f, rows);
      transpose(rows, size.key_pad, size.key, keys + b * kBlock * size.key_pad);
      pack_rows(p.v, segment, head, segment.key + key, in_block, kBlock, size.value, size.value_pad, 1.0f,
                values + b * kBlock * size.value_pad);
    }
    for (int64_t i = 0; i < count; i += kSumBatch) {
      const int in_batch = static_cast<int>(smaller<int64_t>(kSumBatch, count - i));
      const int64_t to = (clamp<int64_t>(at + i + in_batch - first_key, 0, end - first_key) + kBlock - 1) / kBlock;
      const int64_t from = clamp<int64_t>(at + i - span + 1 - first_key, 0, end - first_key) / kBlock;
      score(i, in_batch, at, first_key, from, to);
      float m[kSumBatch], inverse[kSumBatch], level[kSumBatch];
      for (int r = 0; r < kSumBatch; ++r) {
        exponentiate(r, from, to, m + r, inverse + r);
        level[r] = r < in_batch ? p.shift[row + i + r] : 0.0f;
      }
      memset(sum, 0, static_cast<size_t>(kSumBatch * size.value_pad) * 4);
      memset(kept, 0, static_cast<size_t>(kSumBatch * size.value_pad) * 4);
      for (int64_t b = from; b < to; ++b) {
        if (!weigh(block_scores(b), inverse, level)) continue;
        const float* v = values + b * kBlock * size.value_pad;
        add_all(kSumBatch, size.value_pad, kBlock, block_scores(b), kBlock, 1, v, sum);
        if (plan.kept.data) add_all(kSumBatch, size.value_pad, kBlock, mask, kBlock, 1, v, kept);
      }
      for (int r = 0; r < in_batch; ++r) {
        const auto write = [&](const keysift_view& view, const float* from_row) {
          write_row(from_row + r * size.value_pad, KEYSIFT_F32, size.value,
                    const_cast<char*>(row_of(view, KEYSIFT_F32, segment.row, head, query + i + r)));
        };
        write(plan.out, sum);
        if (plan.kept.data) write(plan.kept, kept);
        if (!plan.log) continue;
        plan.log[row + i + r] = m[r];
        plan.log[rows_total + row + i + r] = inverse[r];
      }
    }
  }
};

// Blocks of keys that one chunk of queries may see.
inline int64_t rectified_blocks(const keysift_sums_problem& p) {
  return smaller<int64_t>(p.keys, smaller<int64_t>(span_of(p), p.keys) + kSumChunk) / kBlock + 2;
}

inline int64_t rectified_scratch(const SumsPlan& plan) {
  ScratchLayout count{nullptr};
  RectifiedScratch(SumsSizes(plan.problem), rectified_blocks(plan.problem), &count);
  return count.bytes;
}

inline void rectified_forward(const SumsPlan& plan, const keysift_segment& segment, int64_t head, int64_t first, char* scratch) {
  ScratchLayout layout{scratch};
  RectifiedForward task(plan, segment, head, SumsSizes(plan.problem), rectified_blocks(plan.problem), &layout);
  task.run(first, smaller<int64_t>(kSumChunk, segment.queries - first));
}

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
