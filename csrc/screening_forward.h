// Forward pass of screening. One task is a chunk of queries of one tile, against every key that it sees, or, where keys are grouped, against
// every key that the bounds of the groups do not refuse.
#pragma once

#include "gate.h"
#include "screening_blocks.h"
#include "search_layout.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

// With at least this many accepted keys per query and block, the dense product is faster than the list of pairs.
constexpr int kDenseForward = kBlock / 4;
// With at least this many, the keys of a query are summed in registers before they are added to its row.
constexpr int kManyPairs = 4;
// With at most this many queries, packing all values of a block costs more than using them.
constexpr int64_t kFewQueries = 8;

// A batch of any queries against any keys, which all of them see.
struct Gathered {
  int queries;
  const float *query_at, *key_at;  // positions
};
KEYSIFT_INLINE vf distances(const Gathered& at, vi pairs) {
  return gather(at.query_at, pairs >> 6) - gather(at.key_at, pairs & splat(kBlock - 1));
}
KEYSIFT_INLINE vf distances(const Gathered& at, int i, int key) { return splat(at.query_at[i]) - load(at.key_at + key); }

struct ForwardScratch {
  float *q, *sum, *keys, *values, *staging;
  float *some_q, *some_sums;  // of a batch
  uint16_t* opened;           // (kBlock, chunk) for each block of a group, the queries that open it
  template <class S>
  ForwardScratch(const S& shape, int64_t chunk, ScratchLayout* layout)
      : q(layout->floats(chunk * shape.key_pad())),
        sum(layout->floats(chunk * shape.value_pad())),
        keys(layout->floats(kBlock * shape.key_pad())),
        values(layout->floats(kBlock * shape.value_pad())),
        staging(layout->floats(kBlock * shape.key_pad())),
        some_q(layout->floats(kBatch * shape.key_pad())),
        some_sums(layout->floats(kBatch * shape.value_pad())),
        opened(reinterpret_cast<uint16_t*>(layout->floats(kBlock * chunk / 2))) {}
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

  template <class At>
  KEYSIFT_INLINE void add_pairs(const At& at, const uint64_t* accepted, const float* scores, float* sums) {
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

  // For the first `queries` queries and `keys` keys, a multiple of kTallRows and of kLanes.
  template <class At>
  KEYSIFT_INLINE void add_dense(const At& at, int queries, int keys, const uint64_t* accepted, float* scores, float* sums) {
    const Tile local_tile = tile;
    for (int i = 0; i < queries; ++i) {
      for (int j = 0; j < keys; j += kLanes) {
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
    add_products(queries, shape.value_pad(), keys, scores, kBlock, 1, values.rows, values.stride, sums);
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
    few_queries = segment.queries <= kFewQueries;  // not count: results must not depend on the chunks
    pack_queries(shape, plan, tile, segment, h, first, count, padded_count, scratch.q);
    memset(scratch.sum, 0, static_cast<size_t>(padded_count * shape.value_pad()) * 4);
    const int64_t at = segment.offset + first;
    const int64_t from = larger<int64_t>(0, at - tile.span + 1);
    const int64_t to = smaller<int64_t>(segment.keys, at + count);
    int64_t first_epoch = 0, last_epoch = 0;
    if (plan.blocks) {
      // Epochs that all queries of the kChunk around this chunk see whole.
      const int64_t start = segment.offset + first / kChunk * kChunk;
      first_epoch = (larger<int64_t>(0, start + kChunk - tile.span) + kKeyEpoch - 1) / kKeyEpoch;
      last_epoch = smaller(plan.blocks[h].count, start / kKeyEpoch);
    }
    if (first_epoch < last_epoch) {
      scan(at, count, from, first_epoch * kKeyEpoch);
      for (int64_t e = first_epoch; e < last_epoch; ++e) search(plan.blocks[h].epochs[e], at, e * kKeyEpoch, count);
      scan(at, count, last_epoch * kKeyEpoch, to);
    } else {
      scan(at, count, from, to);
    }
    finish(first, count);
  }

  // Judges the keys from `from` to `to` - 1. The first query is at the position `at`.
  void scan(int64_t at, int64_t count, int64_t from, int64_t to) {
    const int64_t padded_count = (count + kBatch - 1) / kBatch * kBatch;
    const int64_t key_pad = shape.key_pad(), value_pad = shape.value_pad();
    const bool checks_values = !(plan.problem.flags & KEYSIFT_FINITE_VALUES);
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
          add_dense(placement, kBatch, kBlock, accepted, scores, scratch.sum + i * value_pad);
        } else {
          add_pairs(placement, accepted, scores, scratch.sum + i * value_pad);
        }
      }
    }
  }

  // Judges the keys of an epoch that begins at the key `start`, but for those of blocks that a query's score with the centre refuses.
  void search(const EpochBlocks& epoch, int64_t at, int64_t start, int64_t count) {
    int32_t counts[kBlock];
    for (int64_t b = 0; b < epoch.count; b += kBlock) {
      const int blocks = static_cast<int>(smaller<int64_t>(kBlock, epoch.count - b));
      memset(counts, 0, sizeof counts);
      for (int64_t i = 0; i < count; i += kRows) {
        uint64_t open[kRows] = {};
        for (int v = 0; v < kVectors; v += kColumns) open_blocks(i, epoch.centres + b * shape.key(), epoch.limits + b, v, open);
        for (int64_t r = 0; r < smaller<int64_t>(kRows, count - i); ++r) {
          for (uint64_t bits = open[r] & bits_between({0, blocks}); bits; bits &= bits - 1) {
            const int block = __builtin_ctzll(bits);
            scratch.opened[block * plan.chunk + counts[block]++] = static_cast<uint16_t>(i + r);
          }
        }
      }
      for (int x = 0; x < blocks; ++x) {
        if (counts[x] > 0) judge_block(epoch, b + x, at, start, scratch.opened + x * plan.chunk, counts[x]);
      }
    }
  }

  // One bit for each of kBlock blocks that may hold a key which a query accepts, for kRows queries and kColumns vectors of blocks.
  KEYSIFT_INLINE void open_blocks(int64_t query, const float* centres, const float* limits, int vector, uint64_t* open) const {
    vf s[kRows][kColumns];
    product<kColumns>(scratch.q + query * shape.key_pad(), shape.key_pad(), centres + vector * kLanes, shape.key(), s);
    KEYSIFT_UNROLL for (int r = 0; r < kRows; ++r) {
      KEYSIFT_UNROLL for (int c = 0; c < kColumns; ++c) {
        const int key = (vector + c) * kLanes;
        open[r] |= static_cast<uint64_t>(bits_not_below(s[r][c], load(limits + key))) << key;
      }
    }
  }

  // Judges the keys of a block for the listed queries.
  void judge_block(const EpochBlocks& epoch, int64_t block, int64_t at, int64_t start, const uint16_t* queries, int64_t count) {
    const int64_t key_pad = shape.key_pad(), value_pad = shape.value_pad();
    const int32_t* members = epoch.members + block * kBlock;
    const int size = epoch.sizes[block];
    alignas(64) float scores[kBatch * kBlock] = {};
    uint64_t accepted[kBatch];
    float query_at[kBatch], key_at[kBlock] = {};
    for (int j = 0; j < size; ++j) {
      key_at[j] = static_cast<float>(members[j] - start);
      request_value(members[j]);
    }
    bool measured = false;
    for (int64_t e = 0; e < count; e += kBatch) {
      const int n = static_cast<int>(smaller<int64_t>(kBatch, count - e));
      for (int i = 0; i < n; ++i) {
        memcpy(scratch.some_q + i * key_pad, scratch.q + queries[e + i] * key_pad, static_cast<size_t>(key_pad) * 4);
        query_at[i] = static_cast<float>(at + queries[e + i] - start);
      }
      memset(scratch.some_q + n * key_pad, 0, static_cast<size_t>((kBatch - n) * key_pad) * 4);
      const Placement everything{kBlock, kUnlimited, n, size};
      const int pairs = accept_pairs(shape, tile, everything, scratch.some_q, epoch.keys + block * shape.key() * kBlock, scores, accepted);
      if (pairs == 0) continue;
      if (!measured) measure_members(members, size);
      measured = true;
      memset(scratch.some_sums, 0, static_cast<size_t>(kBatch * value_pad) * 4);
      const Gathered placement{n, query_at, key_at};
      if (pairs >= kDenseForward * n) {
        const int rows = (n + kTallRows - 1) / kTallRows * kTallRows, keys = (size + kLanes - 1) / kLanes * kLanes;
        add_dense(placement, rows, keys, accepted, scores, scratch.some_sums);
      } else {
        add_pairs(placement, accepted, scores, scratch.some_sums);
      }
      for (int i = 0; i < n; ++i) {
        if (accepted[i]) add_scaled(scratch.sum + queries[e + i] * value_pad, 1.0f, scratch.some_sums + i * value_pad, value_pad);
      }
    }
  }

  const char* value_of(int32_t member) const {
    return row_of(plan.problem.v, plan.problem.dtype, segment.row, kv, segment.key + member);
  }

  // Most blocks that a query opens hold a key that it accepts: the values arrive while the keys are judged.
  KEYSIFT_INLINE void request_value(int32_t member) const {
    const int64_t bytes = shape.value() * element_bytes(plan.problem.dtype);
    for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(value_of(member) + line);
  }

  // Copies the values of a block, which are finite, and reads their lengths.
  void measure_members(const int32_t* members, int size) {
    const keysift_problem& p = plan.problem;
    const int64_t pad = shape.value_pad();
    for (int j = 0; j < size; ++j) {
      read_row(value_of(members[j]), p.dtype, shape.value(), pad, scratch.values + j * pad);
    }
    memset(scratch.values + size * pad, 0, static_cast<size_t>((kBlock - size) * pad) * 4);
    values.rows = scratch.values;
    values.stride = pad;
    measure_rows(pad, &values);
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
bool unit_keys(const Plan& plan, const keysift_segment& segment, int64_t h, int64_t block_key, float* rows) {
  const keysift_problem& p = plan.problem;
  const S shape(p);
  const int64_t kv = h / (p.tiles / p.kv_tiles), width = shape.key();
  float staging[kBlock * kSearchWidth], packed[kBlock * kSearchWidth];
  pack_keys(shape, plan, plan.tiles[h], segment, kv, block_key, KeySpan{0, kBlock}, staging, packed);
  float differences = 0;  // x - x is 0, or NaN if x is not finite
  for (int64_t x = 0; x < width; ++x) {
    for (int j = 0; j < kBlock; ++j) {
      rows[j * width + x] = packed[x * kBlock + j];
      differences += packed[x * kBlock + j] - packed[x * kBlock + j];
    }
  }
  if (!(differences == 0)) return false;
  if (p.flags & KEYSIFT_FINITE_VALUES) return true;
  for (int64_t j = 0; j < kBlock; ++j) {
    const char* value = row_of(p.v, p.dtype, segment.row, kv, segment.key + block_key + j);
    for (int64_t x = 0; x < shape.value(); ++x) {
      float v;
      read_row(value + x * element_bytes(p.dtype), p.dtype, 1, 1, &v);
      differences += v - v;
    }
  }
  return differences == 0;
}

template <class S>
void unit_queries(const Plan& plan, const keysift_segment& segment, int64_t h, int64_t first, int64_t count, float* rows) {
  pack_queries(S(plan.problem), plan, plan.tiles[h], segment, h, first, count, count, rows);
}

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
