// Forward pass of screening. One task is a chunk of queries of one tile, against every key that it sees.
#pragma once

#include "gate.h"
#include "screening_blocks.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

// With at least this many accepted keys per query and block, the dense product is faster than the list of pairs.
constexpr int kDenseForward = kBlock / 4;
// With at least this many, the keys of a query are summed in registers before they are added to its row.
constexpr int kManyPairs = 4;
// With at most this many queries, packing all values of a block costs more than using them.
constexpr int64_t kFewQueries = 8;

struct ForwardScratch {
  float *q, *sum, *keys, *values, *staging;
  template <class S>
  ForwardScratch(const S& shape, int64_t chunk, ScratchLayout* layout)
      : q(layout->floats(chunk * shape.key_pad())),
        sum(layout->floats(chunk * shape.value_pad())),
        keys(layout->floats(kBlock * shape.key_pad())),
        values(layout->floats(kBlock * shape.value_pad())),
        staging(layout->floats(kBlock * shape.key_pad())) {}
};

template <class S>
struct Forward {
  const S& shape;
  const Plan& plan;
  const Tile& tile;
  const keysift_segment& segment;
  int64_t h, kv;
  ForwardScratch scratch;
  int64_t block_key = 0;
  ValueRows values{};          // of the block
  uint64_t packed_values = 0;  // with few queries: one bit per value row of the block that is packed, at unit length
  bool few_queries = false;

  KEYSIFT_INLINE void add_pairs(const Placement& at, const uint64_t* accepted, const float* scores, float* sums) {
    int32_t pairs[kMaxPairs];
    float relevance[kMaxPairs];
    const int n = list_pairs(accepted, pairs);
    const Tile local_tile = tile;  // a local cannot alias the stores below
    for (int e = 0; e < n; e += kLanes) {
      const vi pair = load(pairs + e);
      const vf t = trim(local_tile, gather(scores, pair));
      vf r = t * t;
      if (local_tile.fades) {
        const vf c = HalfAngle(local_tile, distances(at, pair)).cosine();
        r *= c * c;
      }
      if (!few_queries) r *= gather(values.inverse, pair & splat(kBlock - 1));
      store(relevance + e, r);
    }
    const int64_t pad = shape.value_pad();
    if (few_queries) {
      for (int e = 0; e < n; ++e) {
        const int key = pairs[e] & (kBlock - 1);
        if (packed_values >> key & 1) continue;
        pack_value(shape, plan.problem, segment, kv, block_key + key, scratch.values + key * pad);
        packed_values |= uint64_t{1} << key;
      }
    }
    if (n < kManyPairs * at.queries) {
      const float* const rows = values.rows;
      const int64_t stride = values.stride;
      for (int e = 0; e < n; ++e) {
        add_scaled(sums + (pairs[e] >> 6) * pad, relevance[e], rows + (pairs[e] & (kBlock - 1)) * stride, pad);
      }
    } else {
      add_rows(accepted, pairs, relevance, sums);
    }
  }

  KEYSIFT_INLINE void add_rows(const uint64_t* accepted, const int32_t* pairs, const float* relevance, float* sums) {
    const int64_t pad = shape.value_pad();
    for (int i = 0, e = 0; i < kBatch; ++i) {
      const int end = e + __builtin_popcountll(accepted[i]);
      int64_t x = 0;
      for (; x + kColumns * kLanes <= pad; x += kColumns * kLanes) add_row<kColumns>(e, end, pairs, relevance, x, sums + i * pad);
      for (; x < pad; x += kLanes) add_row<1>(e, end, pairs, relevance, x, sums + i * pad);
      e = end;
    }
  }

  template <int Columns>
  KEYSIFT_INLINE void add_row(int from, int to, const int32_t* pairs, const float* relevance, int64_t x, float* row) {
    vf acc[Columns];
    KEYSIFT_UNROLL for (int c = 0; c < Columns; ++c) acc[c] = vf{};
    for (int e = from; e < to; ++e) {
      const float* value = values.rows + (pairs[e] & (kBlock - 1)) * values.stride + x;
      KEYSIFT_UNROLL for (int c = 0; c < Columns; ++c) acc[c] += splat(relevance[e]) * load(value + c * kLanes);
    }
    KEYSIFT_UNROLL for (int c = 0; c < Columns; ++c) store(row + x + c * kLanes, load(row + x + c * kLanes) + acc[c]);
  }

  KEYSIFT_INLINE void add_dense(const Placement& at, const uint64_t* accepted, float* scores, float* sums) {
    const Tile local_tile = tile;
    for (int i = 0; i < kBatch; ++i) {
      for (int j = 0; j < kBlock; j += kLanes) {
        float* s = scores + i * kBlock + j;
        const vf t = trim(local_tile, load(s));
        vf r = t * t;
        if (local_tile.fades) {
          const vf c = HalfAngle(local_tile, distances(at, i, j)).cosine();
          r *= c * c;
        }
        store(s, keep(static_cast<uint32_t>(accepted[i] >> j), r * load(values.inverse + j)));
      }
    }
    add_products(kBatch, shape.value_pad(), kBlock, scores, kBlock, 1, values.rows, values.stride, sums);
  }

  // Makes the rows of queries that see one of these keys NaN.
  void mark_rows(const Placement& at, uint64_t keys, float* sums) {
    const int64_t pad = shape.value_pad();
    for (int i = 0; i < at.queries; ++i) {
      if (!(bits_between(at.visible(i)) & keys)) continue;
      for (int64_t x = 0; x < pad; x += kLanes) store(sums + i * pad + x, splat(__builtin_nanf("")));
    }
  }

  void run(int64_t first, int64_t count) {
    const int64_t padded_count = (count + kBatch - 1) / kBatch * kBatch;
    const int64_t key_pad = shape.key_pad(), value_pad = shape.value_pad();
    const bool checks_values = !(plan.problem.flags & KEYSIFT_FINITE_VALUES);
    few_queries = segment.queries <= kFewQueries;  // not count: results must not depend on the chunks
    pack_queries(shape, plan, tile, segment, h, first, count, padded_count, scratch.q);
    memset(scratch.sum, 0, static_cast<size_t>(padded_count * value_pad) * 4);

    const int64_t at = segment.offset + first;
    const int64_t from = larger<int64_t>(0, at - tile.span + 1);
    const int64_t to = smaller<int64_t>(segment.keys, at + count);
    alignas(64) float scores[kBatch * kBlock] = {};
    uint64_t accepted[kBatch];
    // If the window begins after the last key, from and to may be in the same block.
    for (block_key = from / kBlock * kBlock; block_key < to && from < to; block_key += kBlock) {
      const int key_count = keys_in_block(segment, block_key);
      const KeySpan needed{static_cast<int>(larger<int64_t>(0, from - block_key)),
                           static_cast<int>(smaller<int64_t>(key_count, to - block_key))};
      bool keys_packed = false, measured = false;
      packed_values = 0;
      values.rows = scratch.values;
      values.stride = value_pad;
      values.non_finite = 0;
      // Skip queries before the block's first key, and queries whose window ends before the block.
      int64_t i = clamp<int64_t>(block_key - at, 0, padded_count) / kBatch * kBatch;
      const int64_t end = clamp<int64_t>(block_key + kBlock - 1 - at + tile.span, 0, count);
      for (; i < end; i += kBatch) {
        const Placement placement{at + i - block_key, tile.span, static_cast<int>(smaller<int64_t>(kBatch, count - i)), key_count};
        if (!may_pass(placement)) continue;
        if (!keys_packed) {
          pack_keys(shape, plan, tile, segment, kv, block_key, needed, scratch.staging, scratch.keys);
          keys_packed = true;
          if (checks_values && few_queries) {
            // The buffer is not in use yet: values are packed when a key is accepted.
            values.non_finite = non_finite_values(shape, plan.problem, segment, kv, block_key, needed, scratch.values);
          }
        }
        if (!few_queries && !measured && checks_values) {
          measure_values(shape, plan.problem, segment, kv, block_key, key_count, scratch.values, &values);
          measured = true;
        }
        if (checks_values && values.non_finite != 0) mark_rows(placement, values.non_finite, scratch.sum + i * value_pad);
        const int n = accept_pairs(shape, tile, placement, scratch.q + i * key_pad, scratch.keys, scores, accepted);
        if (n == 0) continue;
        if (!few_queries && !measured) {
          measure_values(shape, plan.problem, segment, kv, block_key, key_count, scratch.values, &values);
          measured = true;
        }
        if (n >= kDenseForward * placement.queries && !few_queries && values.non_finite == 0) {
          add_dense(placement, accepted, scores, scratch.sum + i * value_pad);
        } else {
          add_pairs(placement, accepted, scores, scratch.sum + i * value_pad);
        }
      }
    }
    finish(first, count);
  }

  void finish(int64_t first, int64_t count) {
    for (int64_t from = 0; from < count; from += kBatch) finish_batch(first, from, static_cast<int>(smaller<int64_t>(kBatch, count - from)));
  }

  // TanhNorm and, for tiles, the gate of a batch of rows.
  void finish_batch(int64_t first, int64_t from, int n) {
    const keysift_problem& p = plan.problem;
    const int64_t pad = shape.value_pad();
    double lengths[kBatch] = {};
    float rounded[kBatch], tanhs[kBatch];
    for (int i = 0; i < n; ++i) lengths[i] = row_square(scratch.sum + (from + i) * pad, pad);
    for (int i = 0; i < kBatch; ++i) {
      lengths[i] = sqrt(lengths[i]);
      rounded[i] = static_cast<float>(lengths[i]);
    }
    for (int i = 0; i < kBatch; i += kLanes) store(tanhs + i, tanh_of(load(rounded + i)));
    const bool has_norm = !(p.flags & KEYSIFT_NO_TANH);
    double shrink[kBatch];
    for (int i = 0; i < kBatch; ++i) shrink[i] = has_norm && lengths[i] > 0 ? static_cast<double>(tanhs[i]) / lengths[i] : 1.0;
    const Factors factors(shrink, [](double x) { return x; });
    for (int i = 0; i < n; ++i) {
      float* row = scratch.sum + (from + i) * pad;
      const int64_t query = segment.query + first + from + i;
      const int64_t at = (segment.row * p.tiles + h) * p.queries + query;
      if (plan.norm) plan.norm[at] = rounded[i];
      if (plan.h) memcpy(plan.h + at * shape.value(), row, static_cast<size_t>(shape.value()) * 4);
      if (plan.gate.scale) {
        gate_row(shape, plan, segment.row, h, query, factors.at(i), scratch.values, row);
      } else if (has_norm) {
        scale_row(row, factors.at(i), pad);
      }
      write_row(row, p.dtype, shape.value(), const_cast<char*>(row_of(plan.u, p.dtype, segment.row, h, query)));
    }
  }
};

template <class S>
int64_t forward_scratch(const Plan& plan) {
  ScratchLayout count{nullptr};
  ForwardScratch(S(plan.problem), plan.chunk, &count);
  return count.bytes;
}

template <class S>
void forward(const Plan& plan, const keysift_segment& segment, int64_t h, int64_t first, char* scratch) {
  const keysift_problem& p = plan.problem;
  const S shape(p);
  ScratchLayout layout{scratch};
  Forward<S> task{shape, plan, plan.tiles[h], segment, h, h / (p.tiles / p.kv_tiles), ForwardScratch(shape, plan.chunk, &layout)};
  task.run(first, smaller<int64_t>(plan.chunk, segment.queries - first));
}

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
