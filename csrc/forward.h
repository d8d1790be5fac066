// Forward: one task is a chunk of queries of one tile, against every key it sees.
#pragma once

#include "blocks.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

// From this many accepted keys per query and block on, the full product is quicker than the listed one.
constexpr int kDenseForward = kBlock / 4;
// From this many on, the keys of a query are summed in registers before they are added to its row.
constexpr int kManyListed = 4;
// With no more queries than this, packing all values of a block costs more than using them.
constexpr int64_t kFewQueries = 8;

struct ForwardScratch {
  float *q, *sum, *keys, *values, *staging;
  template <class S>
  ForwardScratch(const S& shape, int64_t chunk, Carver* carve)
      : q(carve->floats(chunk * shape.key_pad())),
        sum(carve->floats(chunk * shape.value_pad())),
        keys(carve->floats(kBlock * shape.key_pad())),
        values(carve->floats(kBlock * shape.value_pad())),
        staging(carve->floats(kBlock * shape.key_pad())) {}
};

template <class S>
struct Forward {
  const S& shape;
  const Plan& plan;
  const Tile& tile;
  const keysift_piece& piece;
  int64_t h, kv;
  ForwardScratch scratch;
  int64_t block_key = 0;
  uint64_t packed_values = 0;  // one bit per value row of the block that is in place
  bool finite = false;

  KEYSIFT_INLINE void add_listed(const Standing& at, const uint64_t* passed, const float* scores, float* sums) {
    int32_t pairs[kMostPairs];
    float relevance[kMostPairs];
    const int n = list_pairs(passed, pairs);
    const Tile here = tile;  // a local cannot alias what is stored below
    for (int e = 0; e < n; e += kLanes) {
      const vi pair = load(pairs + e);
      const vf t = trim(here, gather(scores, pair));
      vf r = t * t;
      if (here.fades) {
        const vf c = HalfAngle(here, distances(at, pair)).cosine();
        r *= c * c;
      }
      store(relevance + e, r);
    }
    float* const values = scratch.values;
    const int64_t pad = shape.value_pad();
    if (packed_values != ~uint64_t{0}) {
      for (int e = 0; e < n; ++e) {
        const int key = pairs[e] & (kBlock - 1);
        if (packed_values >> key & 1) continue;
        pack_value(shape, plan.problem, piece, kv, block_key + key, values + key * pad);
        packed_values |= uint64_t{1} << key;
      }
    }
    if (n < kManyListed * at.queries) {
      for (int e = 0; e < n; ++e) {
        add_scaled(sums + (pairs[e] >> 6) * pad, relevance[e], values + (pairs[e] & (kBlock - 1)) * pad, pad);
      }
    } else {
      add_rows(passed, pairs, relevance, sums);
    }
  }

  KEYSIFT_INLINE void add_rows(const uint64_t* passed, const int32_t* pairs, const float* relevance, float* sums) {
    const int64_t pad = shape.value_pad();
    for (int i = 0, e = 0; i < kBatch; ++i) {
      const int end = e + __builtin_popcountll(passed[i]);
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
      const float* value = scratch.values + (pairs[e] & (kBlock - 1)) * shape.value_pad() + x;
      KEYSIFT_UNROLL for (int c = 0; c < Columns; ++c) acc[c] += all(relevance[e]) * load(value + c * kLanes);
    }
    KEYSIFT_UNROLL for (int c = 0; c < Columns; ++c) store(row + x + c * kLanes, load(row + x + c * kLanes) + acc[c]);
  }

  KEYSIFT_INLINE void add_dense(const Standing& at, const uint64_t* passed, float* scores, float* sums) {
    const Tile here = tile;
    for (int i = 0; i < kBatch; ++i) {
      for (int j = 0; j < kBlock; j += kLanes) {
        float* s = scores + i * kBlock + j;
        const vf t = trim(here, load(s));
        vf r = t * t;
        if (here.fades) {
          const vf c = HalfAngle(here, distances(at, i, j)).cosine();
          r *= c * c;
        }
        store(s, keep(static_cast<uint32_t>(passed[i] >> j), r));
      }
    }
    add_products(kBatch, shape.value_pad(), kBlock, scores, kBlock, 1, scratch.values, sums);
  }

  void run(int64_t first, int64_t count) {
    const int64_t room = (count + kBatch - 1) / kBatch * kBatch;
    const int64_t key_pad = shape.key_pad(), value_pad = shape.value_pad();
    const bool few = piece.queries <= kFewQueries;  // not count: the path may not depend on how queries are shared out
    pack_queries(shape, plan, tile, piece, h, first, count, room, scratch.q);
    memset(scratch.sum, 0, static_cast<size_t>(room * value_pad) * 4);

    const int64_t at = piece.offset + first;
    const int64_t from = larger<int64_t>(0, at - tile.span + 1);
    const int64_t to = smaller<int64_t>(piece.keys, at + count);
    alignas(64) float scores[kBatch * kBlock] = {};
    uint64_t passed[kBatch];
    // Where the window begins after the last key, from and to may share a block.
    for (block_key = from / kBlock * kBlock; block_key < to && from < to; block_key += kBlock) {
      const int there = existing(piece, block_key);
      const KeySpan needed{static_cast<int>(larger<int64_t>(0, from - block_key)),
                           static_cast<int>(smaller<int64_t>(there, to - block_key))};
      pack_keys(shape, plan, tile, piece, kv, block_key, needed, scratch.staging, scratch.keys);
      packed_values = 0;
      finite = false;
      if (!few) {
        finite = pack_values(shape, plan, piece, kv, block_key, there, scratch.values);
        packed_values = ~uint64_t{0};
      }
      // Queries before the block's first key or past its reach are not visited.
      int64_t i = clamp<int64_t>(block_key - at, 0, room) / kBatch * kBatch;
      const int64_t end = clamp<int64_t>(block_key + kBlock - 1 - at + tile.span, 0, count);
      for (; i < end; i += kBatch) {
        const Standing standing{at + i - block_key, tile.span, static_cast<int>(smaller<int64_t>(kBatch, count - i)), there};
        if (!may_pass(standing)) continue;
        const int n = judge(shape, tile, standing, scratch.q + i * key_pad, scratch.keys, scores, passed);
        if (n == 0) continue;
        if (n >= kDenseForward * standing.queries && finite) {
          add_dense(standing, passed, scores, scratch.sum + i * value_pad);
        } else {
          add_listed(standing, passed, scores, scratch.sum + i * value_pad);
        }
      }
    }
    finish(first, count);
  }

  void finish(int64_t first, int64_t count) {
    const keysift_problem& p = plan.problem;
    for (int64_t i = 0; i < count; ++i) {
      float* row = scratch.sum + i * shape.value_pad();
      const double length = row_length(row, shape.value_pad());
      const int64_t query = piece.query + first + i;
      const int64_t at = (piece.row * p.tiles + h) * p.queries + query;
      if (plan.norm) plan.norm[at] = static_cast<float>(length);
      if (plan.h) memcpy(plan.h + at * shape.value(), row, static_cast<size_t>(shape.value()) * 4);
      if (!(p.flags & KEYSIFT_NO_TANH) && length > 0) {
        scale_row(row, Factor(static_cast<double>(tanhf(static_cast<float>(length))) / length), shape.value_pad());
      }
      write_row(row, p.dtype, shape.value(), const_cast<char*>(row_of(plan.u, p.dtype, piece.row, h, query)));
    }
  }
};

template <class S>
int64_t forward_scratch(const Plan& plan) {
  Carver count{nullptr};
  ForwardScratch(S(plan.problem), plan.chunk, &count);
  return count.bytes;
}

template <class S>
void forward(const Plan& plan, const keysift_piece& piece, int64_t h, int64_t first, char* scratch) {
  const keysift_problem& p = plan.problem;
  const S shape(p);
  Carver carve{scratch};
  Forward<S> task{shape, plan, plan.tiles[h], piece, h, h / (p.tiles / p.kv_tiles), ForwardScratch(shape, plan.chunk, &carve)};
  task.run(first, smaller<int64_t>(plan.chunk, piece.queries - first));
}

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
