// Backward: one task is a range of keys of one kv tile, against every query that sees them. Scores are computed again,
// once, and all gradients are taken from them: dk and dv are complete when a slab of keys is done, dq is added up over the
// slabs in a buffer of the task and finished by finish_dq.
#pragma once

#include "blocks.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

constexpr int kDenseBackward = kBlock / 4;  // as in forward

// A query whose output is not a number (because it sees a key or value that is not) is lost: no gradient flows through it.
// What it saw is therefore seen by lost queries only, and is set to zero here, so that no product meets a NaN.

// What the gradient of TanhNorm needs per query: dh = from_du * du + from_saved * saved, where saved is h or u.
// inverse is 1 / |q|.
struct QueryRow {
  float from_du, from_saved;
  double inverse;  // 0: the row is lost
};
constexpr int kQueryRowFloats = sizeof(QueryRow) / 4;

// dh = f g + c h with f = tanh n / n, c = (g.h) (n sech^2 n - tanh n) / n^3, and h = u / f. Everything but u is
// computed in fp64 from the saved |h|, so a saturated tanh costs no precision.
KEYSIFT_INLINE void tanh_gradient(double n, double du_dot_saved, bool saved_h, QueryRow* row) {
  double f = 1, bend;
  const double z = n * n;
  if (n < 0.05) {
    f = 1 - z / 3 + 2 * z * z / 15;
    bend = -2.0 / 3 + z * (8.0 / 15 + z * (-34.0 / 105 + z * (496.0 / 2835)));
  } else {
    const double th = tanh(n);
    f = th / n;
    bend = (n * (1 - th * th) - th) / (z * n);
  }
  row->from_du = static_cast<float>(f);
  row->from_saved = static_cast<float>(du_dot_saved * bend / (saved_h ? 1 : f * f));
}

// A block of a slab: keys and values packed for both uses, and their gradients.
struct BackwardBlock {
  float *keys, *key_rows;       // (key width, kBlock) and (kBlock, key pad)
  float *values, *values_t;     // (kBlock, value pad) and (value pad, kBlock); the second is made when first needed
  float *dk, *dv;
  int there;  // keys that exist
  bool transposed;
};

struct Batch {
  float *q, *dh, *dq;
};

// Sums for the tile's scalars over one batch and block, in fp32.
struct Slopes {
  vf acceptance{}, reach{}, window{};
};

template <class S>
struct Backward {
  const S& shape;
  const Plan& plan;
  const Tile& tile;
  vd all_acceptance{}, all_reach{}, all_window{};

  // From dP = <dh, v> to the weights of dv (relevance) and of dq and dk (ds), and the tile's scalars.
  // tile and slopes are the caller's locals: through `this` each step would wait for the last one's store.
  // Lanes without a pair must hold zeros throughout: a distance outside the window has an infinite cosine in HalfAngle,
  // and a key that was refused may hold anything; zero times either is not zero.
  KEYSIFT_INLINE static void differentiate(const Tile& tile, vf score, vf dp, vf distance, vf cross, vf* relevance, vf* ds,
                                           Slopes* slopes) {
    const vf t = trim(tile, score);
    const vf alpha = t * t;
    vf soft = all(1.0f);
    if (tile.fades) {
      const HalfAngle half(tile, distance);
      const vf c = half.cosine();
      soft = c * c;
      // d soft / d reach = 2 y sin(y) cos(y) / reach with y = distance * quarter_turn
      slopes->reach += dp * alpha * half.sine() * c * half.y;
    }
    const vf slope = dp * soft * t * all(static_cast<float>(2 * tile.inverse));
    *relevance = alpha * soft;
    *ds = slope;
    slopes->acceptance += slope * (all(1.0f) - score);
    if (tile.rotates) slopes->window += slope * cross * distance;
  }

  KEYSIFT_INLINE void listed(const Standing& at, const uint64_t* passed, const float* scores, const Batch& batch,
                             BackwardBlock& block) {
    int32_t pairs[kMostPairs];
    float relevance[kMostPairs], ds[kMostPairs];
    const int n = list_pairs(passed, pairs);
    const Tile here = tile;
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
      const uint32_t there = n - e >= kLanes ? ~0u : (1u << (n - e)) - 1;
      vf cross{};
      if (here.rotates) {
        const vi q = (pair >> 6) * all(static_cast<int32_t>(key_pad)), k = pair & all(kBlock - 1);
        cross = gather(batch.q, q) * gather(block.keys + kBlock, k) - gather(batch.q + 1, q) * gather(block.keys, k);
      }
      vf r, d;
      differentiate(here, keep(there, gather(scores, pair)), keep(there, sums(partial)), keep(there, distances(at, pair)),
                    keep(there, cross), &r, &d, &slopes);
      store(relevance + e, r);
      store(ds + e, d);
    }
    widen(slopes);
    for (int e = 0; e < n; ++e) {
      const int64_t i = pairs[e] >> 6, j = pairs[e] & (kBlock - 1);
      add_scaled(block.dv + j * value_pad, relevance[e], batch.dh + i * value_pad, value_pad);
      add_scaled(block.dk + j * key_pad, ds[e], batch.q + i * key_pad, key_pad);
      add_scaled(batch.dq + i * key_pad, ds[e], block.key_rows + j * key_pad, key_pad);
    }
  }

  KEYSIFT_INLINE void dense(const Standing& at, const uint64_t* passed, float* scores, const Batch& batch,
                            BackwardBlock& block) {
    const int64_t key_pad = shape.key_pad(), value_pad = shape.value_pad();
    if (!block.transposed) {
      for (int64_t x = 0; x < value_pad; ++x) {
        for (int j = 0; j < kBlock; ++j) block.values_t[x * kBlock + j] = block.values[j * value_pad + x];
      }
      block.transposed = true;
    }
    alignas(64) float relevance[kBatch * kBlock];
    const Tile here = tile;
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
      const vf q0 = all(batch.q[i * key_pad]), q1 = all(batch.q[i * key_pad + 1]);
      for (int j = 0; j < kBlock; j += kLanes) {
        float* s = scores + i * kBlock + j;
        float* p = relevance + i * kBlock + j;
        const uint32_t bits = static_cast<uint32_t>(passed[i] >> j);
        vf cross{};
        if (here.rotates) cross = q0 * load(block.keys + kBlock + j) - q1 * load(block.keys + j);
        vf rel, ds;
        differentiate(here, keep(bits, load(s)), keep(bits, load(p)), keep(bits, distances(at, i, j)), keep(bits, cross), &rel,
                      &ds, &slopes);
        store(p, keep(bits, rel));
        store(s, ds);
      }
    }
    widen(slopes);
    add_products(kBlock, value_pad, kBatch, relevance, 1, kBlock, batch.dh, block.dv);
    add_products(kBlock, key_pad, kBatch, scores, 1, kBlock, batch.q, block.dk);
    add_products(kBatch, key_pad, kBlock, scores, kBlock, 1, block.key_rows, batch.dq);
  }

  KEYSIFT_INLINE void widen(const Slopes& slopes) {
    all_acceptance += halves(slopes.acceptance);
    all_reach += halves(slopes.reach);
    all_window += halves(slopes.window);
  }

  KEYSIFT_INLINE static vd halves(vf x) {
    float lanes[kLanes];
    store(lanes, x);
    return load_wide(lanes) + load_wide(lanes + kLanes / 2);
  }

  void add_to(Sums* sums) const {
    for (int l = 0; l < kLanes / 2; ++l) {
      sums->acceptance += all_acceptance[l] * tile.inverse;
      sums->reach += all_reach[l] * tile.quarter_turn * 1.2732395447351627;  // 2 / reach
      sums->window += all_window[l] * tile.turn_slope;
    }
  }
};

// The slab's packed keys and values, and the steps a task takes for each slab.
struct SlabScratch {
  QueryRow* query_rows;  // (group, queries of the task)
  float *keys, *key_rows, *dk, *dk_all, *values, *values_t, *dv;
  double* value_inverse;
  float *staging, *q, *dh, *other;
  template <class S>
  SlabScratch(const S& shape, int64_t rows, Carver* carve)
      : query_rows(reinterpret_cast<QueryRow*>(carve->floats(kQueryRowFloats * rows))),
        keys(carve->floats(kSlab * shape.key_pad())),
        key_rows(carve->floats(kSlab * shape.key_pad())),
        dk(carve->floats(kSlab * shape.key_pad())),
        dk_all(carve->floats(kSlab * shape.key_pad())),
        values(carve->floats(kSlab * shape.value_pad())),
        values_t(carve->floats(kSlab * shape.value_pad())),
        dv(carve->floats(kSlab * shape.value_pad())),
        value_inverse(reinterpret_cast<double*>(carve->floats(2 * kSlab))),
        staging(carve->floats(kBlock * shape.key_pad())),
        q(carve->floats(kBatch * shape.key_pad())),
        dh(carve->floats(kBatch * shape.value_pad())),
        other(carve->floats(shape.value_pad())) {}
};

template <class S>
struct SlabTask : SlabScratch {
  const S& shape;
  const Plan& plan;
  const BackwardTask& task;
  const keysift_piece& piece;
  BackwardBlock blocks[kSlab / kBlock];

  SlabTask(const S& of, const Plan& all, const BackwardTask& one, Carver* carve)
      : SlabScratch(of, query_rows_of(all, one), carve), shape(of), plan(all), task(one), piece(*one.piece) {}

  static int64_t query_rows_of(const Plan& plan, const BackwardTask& task) {
    return plan.problem.tiles / plan.problem.kv_tiles * (task.last_query - task.first_query);
  }
  int64_t group() const { return plan.problem.tiles / plan.problem.kv_tiles; }
  int64_t queries() const { return task.last_query - task.first_query; }

  // Row i of h, or of u where h was not kept, into `other`.
  KEYSIFT_INLINE void read_saved(int64_t h, int64_t i) {
    const keysift_problem& p = plan.problem;
    if (plan.h) {
      const float* row = plan.h + ((piece.row * p.tiles + h) * p.queries + piece.query + i) * shape.value();
      read_row(reinterpret_cast<const char*>(row), KEYSIFT_F32, shape.value(), shape.value_pad(), other);
    } else {
      read_row(row_of(plan.u, p.dtype, piece.row, h, piece.query + i), p.dtype, shape.value(), shape.value_pad(), other);
    }
  }

  void prepare_queries() {
    const keysift_problem& p = plan.problem;
    const int64_t last = smaller<int64_t>(task.last_query, piece.queries);
    for (int64_t g = 0; g < group(); ++g) {
      const int64_t h = task.kv_tile * group() + g;
      for (int64_t i = task.first_query; i < last; ++i) {
        QueryRow* row = query_rows + g * queries() + (i - task.first_query);
        read_row(row_of(p.q, p.dtype, piece.row, h, piece.query + i), p.dtype, shape.key(), shape.key_pad(), q);
        *row = {1, 0, inverse_length(q, shape.key_pad())};
        const float n = plan.norm ? plan.norm[(piece.row * p.tiles + h) * p.queries + piece.query + i] : 0.0f;
        if (!(row->inverse > 0) || n != n) *row = {0, 0, 0};
        if (row->inverse == 0 || (p.flags & KEYSIFT_NO_TANH)) continue;
        read_saved(h, i);
        read_row(row_of(plan.du, p.dtype, piece.row, h, piece.query + i), p.dtype, shape.value(), shape.value_pad(), dh);
        tanh_gradient(static_cast<double>(n), static_cast<double>(dot(other, dh, shape.value_pad())), plan.h != nullptr, row);
      }
    }
  }

  void open_slab(int64_t slab, int64_t count) {
    const int64_t value_pad = shape.value_pad(), key_pad = shape.key_pad();
    for (int64_t n = 0; n < count; ++n) {
      BackwardBlock& block = blocks[n];
      const int64_t block_key = slab + n * kBlock;
      block.keys = keys + n * kBlock * key_pad;
      block.key_rows = key_rows + n * kBlock * key_pad;
      block.values = values + n * kBlock * value_pad;
      block.values_t = values_t + n * kBlock * value_pad;
      block.dk = dk + n * kBlock * key_pad;
      block.dv = dv + n * kBlock * value_pad;
      block.there = existing(piece, block_key);
      block.transposed = false;
      for (int j = 0; j < kBlock; ++j) {
        float* row = block.values + j * value_pad;
        double* inverse = value_inverse + n * kBlock + j;
        if (j >= block.there) {
          memset(row, 0, static_cast<size_t>(value_pad) * 4);
          *inverse = 0;
        } else {
          *inverse = pack_value(shape, plan.problem, piece, task.kv_tile, block_key + j, row);
          if (!(*inverse > 0)) {
            memset(row, 0, static_cast<size_t>(value_pad) * 4);
            *inverse = 0;
          }
        }
      }
    }
    memset(dv, 0, static_cast<size_t>(count * kBlock * value_pad) * 4);
    memset(dk_all, 0, static_cast<size_t>(count * kBlock * key_pad) * 4);
  }

  void pack_slab_keys(const Tile& tile, int64_t slab, int64_t count) {
    const int64_t key_pad = shape.key_pad();
    for (int64_t n = 0; n < count; ++n) {
      BackwardBlock& block = blocks[n];
      pack_keys(shape, plan, tile, piece, task.kv_tile, slab + n * kBlock, {0, kBlock}, staging, block.keys);
      for (int j = 0; j < kBlock; ++j) {
        float* row = block.key_rows + j * key_pad;
        float total = 0;
        for (int64_t x = 0; x < shape.key(); ++x) {
          row[x] = block.keys[x * kBlock + j];
          total += row[x];
        }
        for (int64_t x = shape.key(); x < key_pad; ++x) row[x] = 0;
        if (total == total) continue;  // parts of a unit row are finite, or one of them is NaN
        for (int64_t x = 0; x < shape.key(); ++x) row[x] = block.keys[x * kBlock + j] = 0;
      }
    }
    memset(dk, 0, static_cast<size_t>(count * kBlock * key_pad) * 4);
  }

  // Unit, turned queries and dh of one batch.
  void prepare_batch(const Tile& tile, int64_t h, int64_t first, int64_t count) {
    const keysift_problem& p = plan.problem;
    const int64_t key_pad = shape.key_pad(), value_pad = shape.value_pad();
    const QueryRow* rows = query_rows + (h % group()) * queries() + (first - task.first_query);
    float cosines[kBatch], sines[kBatch];
    if (tile.rotates) turn_table(tile.turns_per_position, piece.offset + first, kBatch, cosines, sines);
    for (int64_t i = 0; i < count; ++i) {
      float* to = q + i * key_pad;
      if (rows[i].inverse == 0) {
        memset(to, 0, static_cast<size_t>(key_pad) * 4);
        memset(dh + i * value_pad, 0, static_cast<size_t>(value_pad) * 4);
        continue;
      }
      read_row(row_of(p.q, p.dtype, piece.row, h, piece.query + first + i), p.dtype, shape.key(), key_pad, to);
      scale_row(to, Factor(rows[i].inverse), key_pad);
      if (tile.rotates) turn(to, cosines[i], sines[i]);
      float* d = dh + i * value_pad;
      read_row(row_of(plan.du, p.dtype, piece.row, h, piece.query + first + i), p.dtype, shape.value(), value_pad, d);
      if (p.flags & KEYSIFT_NO_TANH) continue;
      read_saved(h, first + i);
      const vf from_du = all(rows[i].from_du), from_saved = all(rows[i].from_saved);
      for (int64_t x = 0; x < value_pad; x += kLanes) store(d + x, from_du * load(d + x) + from_saved * load(other + x));
    }
    memset(q + count * key_pad, 0, static_cast<size_t>((kBatch - count) * key_pad) * 4);
    memset(dh + count * value_pad, 0, static_cast<size_t>((kBatch - count) * value_pad) * 4);
  }

  void cross_slab(int64_t h, int64_t slab, int64_t count) {
    const Tile& tile = plan.tiles[h];
    const int64_t offset = piece.offset;
    const int64_t g = h % group();
    Backward<S> pass{shape, plan, tile};
    alignas(64) float scores[kBatch * kBlock] = {};
    uint64_t passed[kBatch];
    const int64_t from = clamp<int64_t>(slab - offset, 0, piece.queries) / kBatch * kBatch;
    const int64_t to = clamp<int64_t>(slab + count * kBlock - 1 - offset + tile.span, 0, piece.queries);
    for (int64_t i = from; i < to; i += kBatch) {
      const int here = static_cast<int>(smaller<int64_t>(kBatch, piece.queries - i));
      prepare_batch(tile, h, i, here);
      const Batch batch{q, dh, task.dq + (g * queries() + i - task.first_query) * shape.key_pad()};
      for (int64_t n = 0; n < count; ++n) {
        BackwardBlock& block = blocks[n];
        const Standing standing{offset + i - (slab + n * kBlock), tile.span, here, block.there};
        if (!may_pass(standing)) continue;
        const int pairs = judge(shape, tile, standing, q, block.keys, scores, passed);
        if (pairs == 0) continue;
        if (pairs >= kDenseBackward * here) {
          pass.dense(standing, passed, scores, batch, block);
        } else {
          pass.listed(standing, passed, scores, batch, block);
        }
      }
    }
    pass.add_to(task.sums + g);
    if (tile.rotates) turn_back(tile, slab, count);
    for (int64_t x = 0; x < count * kBlock * shape.key_pad(); x += kLanes) store(dk_all + x, load(dk_all + x) + load(dk + x));
  }

  void turn_back(const Tile& tile, int64_t slab, int64_t count) {
    float cosines[kBlock], sines[kBlock];
    for (int64_t n = 0; n < count; ++n) {
      turn_table(tile.turns_per_position, slab + n * kBlock, kBlock, cosines, sines);
      for (int j = 0; j < kBlock; ++j) turn(blocks[n].dk + j * shape.key_pad(), cosines[j], -sines[j]);
    }
  }

  void close_slab(int64_t slab, int64_t count) {
    const keysift_problem& p = plan.problem;
    const int64_t key_pad = shape.key_pad(), value_pad = shape.value_pad();
    const int64_t kv = task.kv_tile;
    for (int64_t n = 0; n < count; ++n) {
      for (int j = 0; j < blocks[n].there; ++j) {
        const int64_t at = n * kBlock + j;
        unit_gradient(dv + at * value_pad, values + at * value_pad, value_inverse[at], value_pad);
        write_row(dv + at * value_pad, p.dtype, shape.value(),
                  const_cast<char*>(row_of(plan.gradients.dv, p.dtype, piece.row, kv, piece.key + slab + at)));
        read_row(row_of(p.k, p.dtype, piece.row, kv, piece.key + slab + at), p.dtype, shape.key(), key_pad, q);
        const double inverse = inverse_length(q, key_pad);
        scale_row(q, Factor(inverse), key_pad);
        unit_gradient(dk_all + at * key_pad, q, inverse, key_pad);
        write_row(dk_all + at * key_pad, p.dtype, shape.key(),
                  const_cast<char*>(row_of(plan.gradients.dk, p.dtype, piece.row, kv, piece.key + slab + at)));
      }
    }
  }

  void run() {
    prepare_queries();
    for (int64_t slab = task.first_key; slab < task.last_key; slab += kSlab) {
      const int64_t count = (smaller<int64_t>(kSlab, task.last_key - slab) + kBlock - 1) / kBlock;
      open_slab(slab, count);
      for (int64_t g = 0; g < group(); ++g) {
        const int64_t h = task.kv_tile * group() + g;
        pack_slab_keys(plan.tiles[h], slab, count);
        cross_slab(h, slab, count);
      }
      close_slab(slab, count);
    }
  }
};

template <class S>
int64_t backward_scratch(const Plan& plan, const BackwardTask& task) {
  Carver count{nullptr};
  SlabScratch(S(plan.problem), SlabTask<S>::query_rows_of(plan, task), &count);
  return count.bytes;
}

template <class S>
void backward(const Plan& plan, const BackwardTask& task, char* scratch) {
  const S shape(plan.problem);
  Carver carve{scratch};
  SlabTask<S>(shape, plan, task, &carve).run();
}

struct FinishScratch {
  float *d, *unit;
  template <class S>
  FinishScratch(const S& shape, Carver* carve) : d(carve->floats(shape.key_pad())), unit(carve->floats(shape.key_pad())) {}
};

template <class S>
int64_t finish_scratch(const Plan& plan) {
  Carver count{nullptr};
  FinishScratch(S(plan.problem), &count);
  return count.bytes;
}

template <class S>
void finish_dq(const Plan& plan, const BackwardTask* tasks, int64_t count, int64_t h, char* scratch) {
  const keysift_problem& p = plan.problem;
  const keysift_piece& piece = *tasks[0].piece;
  const S shape(p);
  const Tile& tile = plan.tiles[h];
  const int64_t pad = shape.key_pad(), g = h % (p.tiles / p.kv_tiles);
  Carver carve{scratch};
  const FinishScratch work(shape, &carve);
  float *d = work.d, *unit = work.unit;
  float cosines[kBatch], sines[kBatch];
  for (int64_t i = 0; i < piece.queries; ++i) {
    if (tile.rotates && i % kBatch == 0) turn_table(tile.turns_per_position, piece.offset + i, kBatch, cosines, sines);
    memset(d, 0, static_cast<size_t>(pad) * 4);
    for (int64_t n = 0; n < count; ++n) {
      const BackwardTask& task = tasks[n];
      if (i < task.first_query || i >= task.last_query) continue;
      add_scaled(d, 1.0f, task.dq + (g * (task.last_query - task.first_query) + i - task.first_query) * pad, pad);
    }
    if (tile.rotates) turn(d, cosines[i % kBatch], -sines[i % kBatch]);
    read_row(row_of(p.q, p.dtype, piece.row, h, piece.query + i), p.dtype, shape.key(), pad, unit);
    const double inverse = inverse_length(unit, pad);
    scale_row(unit, Factor(inverse), pad);
    unit_gradient(d, unit, inverse, pad);
    write_row(d, p.dtype, shape.key(), const_cast<char*>(row_of(plan.gradients.dq, p.dtype, piece.row, h, piece.query + i)));
  }
}

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
