// Backward pass of screening. One task is a range of keys of one kv tile, against every query that sees them. Scores are
// recomputed once, and all gradients come from them. dk and dv are complete after each slab of keys; dq is summed over the
// slabs in a buffer of the task and finished by finish_dq.
#pragma once

#include "screening_blocks.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

constexpr int kDenseBackward = kBlock / 4;  // as kDenseForward

// A query with a NaN output (it sees a non-finite key or value) gets no gradient. Only such queries see a non-finite key or
// value, so these are set to zero here, and no product contains a NaN.

// Factors of one query: dh = from_du * du + from_saved * saved, where saved is h or u; inverse is 1 / |q|.
struct QueryRow {
  float from_du, from_saved;
  double inverse;  // 0: the query gets no gradient
};
constexpr int kQueryRowFloats = sizeof(QueryRow) / 4;

// If u is saved, h = u / from_du. Everything but u is computed in fp64 from the saved |h|, so a saturated tanh costs no
// precision.
KEYSIFT_INLINE void tanh_gradient(double n, double du_dot_saved, bool saved_h, QueryRow* row) {
  const TanhSlope slope(n);
  row->from_du = static_cast<float>(slope.from_du);
  row->from_saved = static_cast<float>(du_dot_saved * slope.from_h / (saved_h ? 1 : slope.from_du * slope.from_du));
}

// A block of a slab: keys and values packed for both uses, and their gradients.
struct BackwardBlock {
  float *keys, *key_rows;       // (key width, kBlock) and (kBlock, key pad)
  float *values, *values_t;     // (kBlock, value pad) and (value pad, kBlock); the second is computed on first use
  float *dk, *dv;
  int key_count;  // keys in the block
  bool keys_packed, values_packed, transposed;
};

struct Batch {
  float *q, *dh, *dq;
};

// Sums for the tile's scalars over one batch and block, in fp32.
struct Slopes {
  vf acceptance{}, effective_window{}, window{};
};

template <class S>
struct Backward {
  const S& shape;
  const Plan& plan;
  const Tile& tile;
  vd all_acceptance{}, all_effective_window{}, all_window{};

  // From dP = <dh, v>, computes the weights of dv (relevance) and of dq and dk (ds), and adds to the tile's slopes.
  // tile and slopes are locals of the caller: through `this`, each step would wait for the previous store.
  // Lanes without a pair must contain zeros in every input: a distance outside the window has an infinite cosine in HalfAngle,
  // a rejected key may contain NaN, and zero times either is not zero.
  KEYSIFT_INLINE static void differentiate(const Tile& tile, vf score, vf dp, vf distance, vf cross, vf* relevance, vf* ds,
                                           Slopes* slopes) {
    const vf t = trim(tile, score);
    const vf alpha = t * t;
    vf soft = splat(1.0f);
    if (tile.fades) {
      const HalfAngle half(tile, distance);
      const vf c = half.cosine();
      soft = c * c;
      // d soft / d effective_window = 2 y sin(y) cos(y) / effective_window with y = distance * half_angle_step
      slopes->effective_window += dp * alpha * half.sine() * c * half.y;
    }
    const vf slope = dp * soft * t * splat(static_cast<float>(2 * tile.inverse));
    *relevance = alpha * soft;
    *ds = slope;
    slopes->acceptance += slope * (splat(1.0f) - score);
    if (tile.rotates) slopes->window += slope * cross * distance;
  }

  KEYSIFT_INLINE void listed(const Placement& at, const uint64_t* accepted, const float* scores, const Batch& batch,
                             BackwardBlock& block) {
    int32_t pairs[kMaxPairs];
    float relevance[kMaxPairs], ds[kMaxPairs];
    const int n = list_pairs(accepted, pairs);
    const Tile local_tile = tile;
    Slopes slopes;
    const int64_t key_pad = shape.key_pad(), value_pad = shape.value_pad();
    for (int e = 0; e < n; e += kLanes) {
      vf partial[kLanes];
      for (int l = 0; l < kLanes; ++l) {
        const float* dh = batch.dh + (pairs[e + l] >> 6) * value_pad;
        const float* value = block.values + (pairs[e + l] & (kBlock - 1)) * value_pad;
        partial[l] = vf{};
        for (int64_t x = 0; x < value_pad; x += kLanes) partial[l] += load(dh + x) * load(value + x);
      }
      const vi pair = load(pairs + e);
      const uint32_t lanes = n - e >= kLanes ? ~0u : (1u << (n - e)) - 1;
      vf cross{};
      if (local_tile.rotates) {
        const vi q = (pair >> 6) * splat(static_cast<int32_t>(key_pad)), k = pair & splat(kBlock - 1);
        cross = gather(batch.q, q) * gather(block.keys + kBlock, k) - gather(batch.q + 1, q) * gather(block.keys, k);
      }
      vf r, d;
      differentiate(local_tile, keep(lanes, gather(scores, pair)), keep(lanes, sums(partial)), keep(lanes, distances(at, pair)),
                    keep(lanes, cross), &r, &d, &slopes);
      store(relevance + e, r);
      store(ds + e, d);
    }
    add_slopes(slopes);
    for (int e = 0; e < n; ++e) {
      const int64_t i = pairs[e] >> 6, j = pairs[e] & (kBlock - 1);
      add_scaled(block.dv + j * value_pad, relevance[e], batch.dh + i * value_pad, value_pad);
      add_scaled(block.dk + j * key_pad, ds[e], batch.q + i * key_pad, key_pad);
      add_scaled(batch.dq + i * key_pad, ds[e], block.key_rows + j * key_pad, key_pad);
    }
  }

  KEYSIFT_INLINE void dense(const Placement& at, const uint64_t* accepted, float* scores, const Batch& batch,
                            BackwardBlock& block) {
    const int64_t key_pad = shape.key_pad(), value_pad = shape.value_pad();
    if (!block.transposed) {
      for (int64_t x = 0; x < value_pad; ++x) {
        for (int j = 0; j < kBlock; ++j) block.values_t[x * kBlock + j] = block.values[j * value_pad + x];
      }
      block.transposed = true;
    }
    alignas(64) float relevance[kBatch * kBlock];
    const Tile local_tile = tile;
    Slopes slopes;
    for (int i = 0; i < kBatch; i += kRows) {
      for (int v = 0; v < kVectors; v += kColumns) {
        vf dp[kRows][kColumns];
        product<kColumns>(batch.dh + i * value_pad, value_pad, block.values_t + v * kLanes, shape.value(), dp);
        KEYSIFT_UNROLL for (int r = 0; r < kRows; ++r) {
          KEYSIFT_UNROLL for (int c = 0; c < kColumns; ++c) store(relevance + (i + r) * kBlock + (v + c) * kLanes, dp[r][c]);
        }
      }
    }
    for (int i = 0; i < kBatch; ++i) {
      const vf q0 = splat(batch.q[i * key_pad]), q1 = splat(batch.q[i * key_pad + 1]);
      for (int j = 0; j < kBlock; j += kLanes) {
        float* s = scores + i * kBlock + j;
        float* p = relevance + i * kBlock + j;
        const uint32_t bits = static_cast<uint32_t>(accepted[i] >> j);
        vf cross{};
        if (local_tile.rotates) cross = q0 * load(block.keys + kBlock + j) - q1 * load(block.keys + j);
        vf rel, ds;
        differentiate(local_tile, keep(bits, load(s)), keep(bits, load(p)), keep(bits, distances(at, i, j)), keep(bits, cross),
                      &rel, &ds, &slopes);
        store(p, keep(bits, rel));
        store(s, ds);
      }
    }
    add_slopes(slopes);
    add_products(kBlock, value_pad, kBatch, relevance, 1, kBlock, batch.dh, value_pad, block.dv);
    add_products(kBlock, key_pad, kBatch, scores, 1, kBlock, batch.q, key_pad, block.dk);
    add_products(kBatch, key_pad, kBlock, scores, kBlock, 1, block.key_rows, key_pad, batch.dq);
  }

  KEYSIFT_INLINE void add_slopes(const Slopes& slopes) {
    all_acceptance += widened(slopes.acceptance);
    all_effective_window += widened(slopes.effective_window);
    all_window += widened(slopes.window);
  }

  KEYSIFT_INLINE static vd widened(vf x) {
    float lanes[kLanes];
    store(lanes, x);
    return load_wide(lanes) + load_wide(lanes + kLanes / 2);
  }

  void add_to(Sums* sums) const {
    for (int l = 0; l < kLanes / 2; ++l) {
      sums->acceptance += all_acceptance[l] * tile.inverse;
      sums->effective_window += all_effective_window[l] * tile.half_angle_step * 1.2732395447351627;  // 2 / effective_window
      sums->window += all_window[l] * tile.angle_slope;
    }
  }
};

// Scratch memory of a task: packed keys and values of a slab, and their gradients.
struct SlabScratch {
  QueryRow* query_rows;  // (group, queries of the task)
  float *keys, *key_rows, *dk, *dk_all, *values, *values_t, *dv;
  double* value_inverse;
  float *staging, *q, *dh, *other;
  template <class S>
  SlabScratch(const S& shape, int64_t rows, ScratchLayout* layout)
      : query_rows(reinterpret_cast<QueryRow*>(layout->floats(kQueryRowFloats * rows))),
        keys(layout->floats(kSlab * shape.key_pad())),
        key_rows(layout->floats(kSlab * shape.key_pad())),
        dk(layout->floats(kSlab * shape.key_pad())),
        dk_all(layout->floats(kSlab * shape.key_pad())),
        values(layout->floats(kSlab * shape.value_pad())),
        values_t(layout->floats(kSlab * shape.value_pad())),
        dv(layout->floats(kSlab * shape.value_pad())),
        value_inverse(reinterpret_cast<double*>(layout->floats(2 * kSlab))),
        staging(layout->floats(kBlock * shape.key_pad())),
        q(layout->floats(kBatch * shape.key_pad())),
        dh(layout->floats(kBatch * shape.value_pad())),
        other(layout->floats(shape.value_pad())) {}
};

template <class S>
struct SlabTask : SlabScratch {
  const S& shape;
  const Plan& plan;
  const BackwardTask& task;
  const keysift_segment& segment;
  BackwardBlock blocks[kSlab / kBlock];

  SlabTask(const S& shape_, const Plan& plan_, const BackwardTask& task_, ScratchLayout* layout)
      : SlabScratch(shape_, query_rows_of(plan_, task_), layout),
        shape(shape_),
        plan(plan_),
        task(task_),
        segment(*task_.segment) {}

  static int64_t query_rows_of(const Plan& plan, const BackwardTask& task) {
    return plan.problem.tiles / plan.problem.kv_tiles * (task.last_query - task.first_query);
  }
  int64_t group() const { return plan.problem.tiles / plan.problem.kv_tiles; }
  int64_t queries() const { return task.last_query - task.first_query; }

  // Reads row i of h, or of u if h was not saved, into `other`.
  KEYSIFT_INLINE void read_saved(int64_t h, int64_t i) {
    const keysift_problem& p = plan.problem;
    if (plan.h) {
      const float* row = plan.h + ((segment.row * p.tiles + h) * p.queries + segment.query + i) * shape.value();
      read_row(reinterpret_cast<const char*>(row), KEYSIFT_F32, shape.value(), shape.value_pad(), other);
    } else {
      read_row(row_of(plan.u, p.dtype, segment.row, h, segment.query + i), p.dtype, shape.value(), shape.value_pad(), other);
    }
  }

  KEYSIFT_INLINE void read_du(int64_t h, int64_t i, float* row) {
    read_row(row_of(plan.du, plan.du_dtype, segment.row, h, segment.query + i), plan.du_dtype, shape.value(), shape.value_pad(), row);
  }

  void prepare_queries() {
    const keysift_problem& p = plan.problem;
    const int64_t last = smaller<int64_t>(task.last_query, segment.queries);
    for (int64_t g = 0; g < group(); ++g) {
      const int64_t h = task.kv_tile * group() + g;
      for (int64_t i = task.first_query; i < last; ++i) {
        QueryRow* row = query_rows + g * queries() + (i - task.first_query);
        read_row(row_of(p.q, p.dtype, segment.row, h, segment.query + i), p.dtype, shape.key(), shape.key_pad(), q);
        *row = {1, 0, inverse_length(q, shape.key_pad())};
        const float n = plan.norm ? plan.norm[(segment.row * p.tiles + h) * p.queries + segment.query + i] : 0.0f;
        if (!(row->inverse > 0) || n != n) *row = {0, 0, 0};
        if (row->inverse == 0 || (p.flags & KEYSIFT_NO_TANH)) continue;
        read_saved(h, i);
        read_du(h, i, dh);
        tanh_gradient(static_cast<double>(n), static_cast<double>(dot(other, dh, shape.value_pad())), plan.h != nullptr, row);
      }
    }
  }

  void begin_slab(int64_t slab, int64_t count) {
    const int64_t value_pad = shape.value_pad(), key_pad = shape.key_pad();
    for (int64_t n = 0; n < count; ++n) {
      BackwardBlock& block = blocks[n];
      block.keys = keys + n * kBlock * key_pad;
      block.key_rows = key_rows + n * kBlock * key_pad;
      block.values = values + n * kBlock * value_pad;
      block.values_t = values_t + n * kBlock * value_pad;
      block.dk = dk + n * kBlock * key_pad;
      block.dv = dv + n * kBlock * value_pad;
      block.key_count = keys_in_block(segment, slab + n * kBlock);
      block.values_packed = block.transposed = false;
    }
    memset(dv, 0, static_cast<size_t>(count * kBlock * value_pad) * 4);
    memset(dk_all, 0, static_cast<size_t>(count * kBlock * key_pad) * 4);
  }

  // The values of block n, packed when the first pair of the block is accepted. Rows that are not finite become zeros.
  void pack_block_values(int64_t slab, int64_t n) {
    BackwardBlock& block = blocks[n];
    const int64_t value_pad = shape.value_pad();
    for (int j = 0; j < kBlock; ++j) {
      float* row = block.values + j * value_pad;
      double* inverse = value_inverse + n * kBlock + j;
      *inverse = j < block.key_count ? pack_value(shape, plan.problem, segment, task.kv_tile, slab + n * kBlock + j, row) : 0;
      if (!(*inverse > 0)) {
        memset(row, 0, static_cast<size_t>(value_pad) * 4);
        *inverse = 0;
      }
    }
    block.values_packed = true;
  }

  // The keys of block n, rotated for one tile, packed when the first batch may pass. Rows that are not finite become zeros.
  void pack_block_keys(const Tile& tile, int64_t slab, int64_t n) {
    BackwardBlock& block = blocks[n];
    const int64_t key_pad = shape.key_pad();
    pack_keys(shape, plan, tile, segment, task.kv_tile, slab + n * kBlock, {0, kBlock}, staging, block.keys);
    for (int j = 0; j < kBlock; ++j) {
      float* row = block.key_rows + j * key_pad;
      float total = 0;
      for (int64_t x = 0; x < shape.key(); ++x) {
        row[x] = block.keys[x * kBlock + j];
        total += row[x];
      }
      for (int64_t x = shape.key(); x < key_pad; ++x) row[x] = 0;
      if (total == total) continue;  // a unit row is finite, or one of its elements is NaN
      for (int64_t x = 0; x < shape.key(); ++x) row[x] = block.keys[x * kBlock + j] = 0;
    }
    memset(block.dk, 0, static_cast<size_t>(kBlock * key_pad) * 4);
    block.keys_packed = true;
  }

  // Packs the unit, rotated queries and dh of one batch.
  void prepare_batch(const Tile& tile, int64_t h, int64_t first, int64_t count) {
    const keysift_problem& p = plan.problem;
    const int64_t key_pad = shape.key_pad(), value_pad = shape.value_pad();
    const QueryRow* rows = query_rows + (h % group()) * queries() + (first - task.first_query);
    float cosines[kBatch], sines[kBatch];
    if (tile.rotates) rotation_table(tile.turns_per_position, segment.offset + first, kBatch, cosines, sines);
    for (int64_t i = 0; i < count; ++i) {
      float* to = q + i * key_pad;
      if (rows[i].inverse == 0) {
        memset(to, 0, static_cast<size_t>(key_pad) * 4);
        memset(dh + i * value_pad, 0, static_cast<size_t>(value_pad) * 4);
        continue;
      }
      read_row(row_of(p.q, p.dtype, segment.row, h, segment.query + first + i), p.dtype, shape.key(), key_pad, to);
      scale_row(to, Factor(rows[i].inverse), key_pad);
      if (tile.rotates) rotate(to, cosines[i], sines[i]);
      float* d = dh + i * value_pad;
      read_du(h, first + i, d);
      if (p.flags & KEYSIFT_NO_TANH) continue;
      read_saved(h, first + i);
      const vf from_du = splat(rows[i].from_du), from_saved = splat(rows[i].from_saved);
      for (int64_t x = 0; x < value_pad; x += kLanes) store(d + x, from_du * load(d + x) + from_saved * load(other + x));
    }
    memset(q + count * key_pad, 0, static_cast<size_t>((kBatch - count) * key_pad) * 4);
    memset(dh + count * value_pad, 0, static_cast<size_t>((kBatch - count) * value_pad) * 4);
  }

  void process_slab(int64_t h, int64_t slab, int64_t count) {
    const Tile& tile = plan.tiles[h];
    const int64_t offset = segment.offset;
    const int64_t g = h % group();
    Backward<S> pass{shape, plan, tile};
    for (int64_t n = 0; n < count; ++n) blocks[n].keys_packed = false;
    alignas(64) float scores[kBatch * kBlock] = {};
    uint64_t accepted[kBatch];
    const int64_t from = clamp<int64_t>(slab - offset, 0, segment.queries) / kBatch * kBatch;
    const int64_t to = clamp<int64_t>(slab + count * kBlock - 1 - offset + tile.span, 0, segment.queries);
    for (int64_t i = from; i < to; i += kBatch) {
      const int query_count = static_cast<int>(smaller<int64_t>(kBatch, segment.queries - i));
      prepare_batch(tile, h, i, query_count);
      const Batch batch{q, dh, task.dq + (g * queries() + i - task.first_query) * shape.key_pad()};
      for (int64_t n = 0; n < count; ++n) {
        BackwardBlock& block = blocks[n];
        const Placement placement{offset + i - (slab + n * kBlock), tile.span, query_count, block.key_count};
        if (!may_pass(placement)) continue;
        if (!block.keys_packed) pack_block_keys(tile, slab, n);
        const int pairs = accept_pairs(shape, tile, placement, q, block.keys, scores, accepted);
        if (pairs == 0) continue;
        if (!block.values_packed) pack_block_values(slab, n);
        if (pairs >= kDenseBackward * query_count) {
          pass.dense(placement, accepted, scores, batch, block);
        } else {
          pass.listed(placement, accepted, scores, batch, block);
        }
      }
    }
    pass.add_to(task.sums + g);
    for (int64_t n = 0; n < count; ++n) {
      if (blocks[n].keys_packed) add_key_gradients(tile, slab, n);
    }
  }

  // Rotates dk of block n back and adds it to the sum over tiles.
  void add_key_gradients(const Tile& tile, int64_t slab, int64_t n) {
    const int64_t key_pad = shape.key_pad();
    float* from = blocks[n].dk;
    float* to = dk_all + n * kBlock * key_pad;
    if (tile.rotates) {
      float cosines[kBlock], sines[kBlock];
      rotation_table(tile.turns_per_position, slab + n * kBlock, kBlock, cosines, sines);
      for (int j = 0; j < kBlock; ++j) rotate(from + j * key_pad, cosines[j], -sines[j]);
    }
    for (int64_t x = 0; x < kBlock * key_pad; x += kLanes) store(to + x, load(to + x) + load(from + x));
  }

  void finish_slab(int64_t slab, int64_t count) {
    const keysift_problem& p = plan.problem;
    const int64_t key_pad = shape.key_pad(), value_pad = shape.value_pad();
    const int64_t kv = task.kv_tile;
    for (int64_t n = 0; n < count; ++n) {
      for (int j = 0; j < blocks[n].key_count; ++j) {
        const int64_t at = n * kBlock + j;
        // Without accepted pairs dv is zero, and the values were not packed.
        if (blocks[n].values_packed) unit_gradient(dv + at * value_pad, values + at * value_pad, value_inverse[at], value_pad);
        write_row(dv + at * value_pad, p.dtype, shape.value(),
                  const_cast<char*>(row_of(plan.gradients.dv, p.dtype, segment.row, kv, segment.key + slab + at)));
        read_row(row_of(p.k, p.dtype, segment.row, kv, segment.key + slab + at), p.dtype, shape.key(), key_pad, q);
        const double inverse = inverse_length(q, key_pad);
        scale_row(q, Factor(inverse), key_pad);
        unit_gradient(dk_all + at * key_pad, q, inverse, key_pad);
        write_row(dk_all + at * key_pad, p.dtype, shape.key(),
                  const_cast<char*>(row_of(plan.gradients.dk, p.dtype, segment.row, kv, segment.key + slab + at)));
      }
    }
  }

  void run() {
    prepare_queries();
    for (int64_t slab = task.first_key; slab < task.last_key; slab += kSlab) {
      const int64_t count = (smaller<int64_t>(kSlab, task.last_key - slab) + kBlock - 1) / kBlock;
      begin_slab(slab, count);
      for (int64_t g = 0; g < group(); ++g) {
        const int64_t h = task.kv_tile * group() + g;
        process_slab(h, slab, count);
      }
      finish_slab(slab, count);
    }
  }
};

template <class S>
int64_t backward_scratch(const Plan& plan, const BackwardTask& task) {
  ScratchLayout count{nullptr};
  SlabScratch(S(plan.problem), SlabTask<S>::query_rows_of(plan, task), &count);
  return count.bytes;
}

template <class S>
void backward(const Plan& plan, const BackwardTask& task, char* scratch) {
  const S shape(plan.problem);
  ScratchLayout layout{scratch};
  SlabTask<S>(shape, plan, task, &layout).run();
}

struct FinishScratch {
  float *d, *unit;
  template <class S>
  FinishScratch(const S& shape, ScratchLayout* layout)
      : d(layout->floats(shape.key_pad())), unit(layout->floats(shape.key_pad())) {}
};

template <class S>
int64_t finish_scratch(const Plan& plan) {
  ScratchLayout count{nullptr};
  FinishScratch(S(plan.problem), &count);
  return count.bytes;
}

template <class S>
void finish_dq(const Plan& plan, const BackwardTask* tasks, int64_t count, int64_t h, char* scratch) {
  const keysift_problem& p = plan.problem;
  const keysift_segment& segment = *tasks[0].segment;
  const S shape(p);
  const Tile& tile = plan.tiles[h];
  const int64_t pad = shape.key_pad(), g = h % (p.tiles / p.kv_tiles);
  ScratchLayout layout{scratch};
  const FinishScratch work(shape, &layout);
  float *d = work.d, *unit = work.unit;
  float cosines[kBatch], sines[kBatch];
  for (int64_t i = 0; i < segment.queries; ++i) {
    if (tile.rotates && i % kBatch == 0) rotation_table(tile.turns_per_position, segment.offset + i, kBatch, cosines, sines);
    memset(d, 0, static_cast<size_t>(pad) * 4);
    for (int64_t n = 0; n < count; ++n) {
      const BackwardTask& task = tasks[n];
      if (i < task.first_query || i >= task.last_query) continue;
      add_scaled(d, 1.0f, task.dq + (g * (task.last_query - task.first_query) + i - task.first_query) * pad, pad);
    }
    if (tile.rotates) rotate(d, cosines[i % kBatch], -sines[i % kBatch]);
    read_row(row_of(p.q, p.dtype, segment.row, h, segment.query + i), p.dtype, shape.key(), pad, unit);
    const double inverse = inverse_length(unit, pad);
    scale_row(unit, Factor(inverse), pad);
    unit_gradient(d, unit, inverse, pad);
    write_row(d, p.dtype, shape.key(), const_cast<char*>(row_of(plan.gradients.dq, p.dtype, segment.row, h, segment.query + i)));
  }
}

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
