// Attention of one decoded token over the rings of a cache: what all tasks share, and softmax. Screening: decode_screening.h.
#pragma once

#include "decode_moments.h"
#include "decode_products.h"
#include "exponential.h"
#include "gate.h"
#include "screening_blocks.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

// Buffers of a thread for one attention task.
struct AttendScratch {
  float *q, *row, *scores, *sums, *block;
  uint16_t* listed;
  uint64_t* opened;
  double* moments;  // keys to add to the sums
  AttendScratch(const keysift_decode_layer& w, ScratchLayout* layout)
      : q(layout->floats(w.heads / w.kv_heads * padded_width(w.key_width))),
        row(layout->floats(padded_width(w.key_width > w.value_width ? w.key_width : w.value_width))),
        scores(layout->floats(w.heads / w.kv_heads * (kPiece + kPad))),
        sums(layout->floats(padded_width(w.value_width))),
        block(layout->floats(w.attention == KEYSIFT_SCREENING ? (w.key_width + 1) * kBlockKeys : 0)),
        listed(reinterpret_cast<uint16_t*>(layout->floats(w.attention == KEYSIFT_SCREENING ? kEpoch / 2 : 0))),
        opened(reinterpret_cast<uint64_t*>(layout->floats(w.attention == KEYSIFT_SCREENING ? kEpoch / 32 : 0))),
        moments(reinterpret_cast<double*>(layout->floats(
            w.attention == KEYSIFT_SCREENING ? 2 * MomentKeys::doubles(w.key_width, padded_width(w.value_width)) : 0))) {}
};

KEYSIFT_INLINE bool is_finite(const float* row, int64_t width) {
  float differences = 0;  // x - x is 0, or NaN if x is not finite
  for (int64_t i = 0; i < width; ++i) differences += row[i] - row[i];
  return differences == 0;
}

KEYSIFT_INLINE const char* element(const void* memory, int32_t dtype, int64_t at) {
  return static_cast<const char*>(memory) + at * element_bytes(dtype);
}

KEYSIFT_INLINE vf silu(vf x) { return x / (splat(1.0f) + Exponential(-x).power); }

// RMSNorm of a row with `width` elements; gain may be NULL. The padding stays 0.
KEYSIFT_INLINE void rms_norm(const float* from, const void* gain, int32_t dtype, int64_t width, double eps, float* to) {
  const int64_t pad = padded_width(width);
  const double mean = static_cast<double>(dot(from, from, pad)) / static_cast<double>(width);
  const vf factor = splat(static_cast<float>(1.0 / sqrt(mean + eps)));
  for (int64_t i = 0; i < pad; i += kLanes) store(to + i, load(from + i) * factor);
  if (!gain) return;
  if (dtype == KEYSIFT_F32) {
    const float* g = static_cast<const float*>(gain);
    for (int64_t i = 0; i < width; ++i) to[i] *= g[i];
  } else {
    const uint16_t* g = static_cast<const uint16_t*>(gain);
    for (int64_t i = 0; i < width; ++i) to[i] *= dtype == KEYSIFT_BF16 ? from_bits(static_cast<uint32_t>(g[i]) << 16) : from_f16(g[i]);
  }
}

// Norm and RoPE of one query or key, in place.
KEYSIFT_INLINE void place(const DecodeCall& call, const DecodeLayer& layer, int64_t b, const void* gain, double eps, float* row) {
  const keysift_decode_layer& w = *layer.weights;
  if (gain) rms_norm(row, gain, call.model->dtype, w.key_width, eps, row);
  if (!w.frequencies) return;
  const int64_t half = w.key_width / 2;
  const float *cosines = layer.waves + b * 2 * half, *sines = cosines + half;
  for (int64_t i = 0; i < half; ++i) {
    const float x = row[i], y = row[i + half];
    row[i] = x * cosines[i] - y * sines[i];
    row[i + half] = x * sines[i] + y * cosines[i];
  }
}

struct Attend {
  const DecodeCall& call;
  const DecodeLayer& layer;
  const keysift_decode_layer& w;
  const keysift_decode_cache& cache;
  const AttendTask& task;
  AttendScratch scratch;
  int64_t group, key_pad, value_pad, offset, capacity, newest;

  Attend(const DecodeCall& c, const DecodeLayer& l, const AttendTask& t, ScratchLayout* layout)
      : call(c), layer(l), w(*l.weights), cache(*l.cache), task(t), scratch(w, layout) {
    group = w.heads / w.kv_heads;
    key_pad = padded_width(w.key_width);
    value_pad = padded_width(w.value_width);
    offset = cache.ring[2 * task.head];
    capacity = cache.ring[2 * task.head + 1];
    newest = call.lengths[task.row];
  }

  // The keys or values of this head's ring.
  KEYSIFT_INLINE const char* ring(const void* memory, int64_t width) const {
    return element(memory, call.model->dtype, (task.row * cache.slots + offset) * width);
  }
  KEYSIFT_INLINE float* partial(int64_t piece, int64_t query) const {
    return task.partial + (piece * group + query) * (value_pad + kPad);
  }

  // What moments and refused keys of a task come to.
  KEYSIFT_INLINE double* wide_sums(int64_t first_slot) const {
    return reinterpret_cast<double*>(partial(task.pieces + kWideRows * (first_slot / kEpoch), 0));
  }

  // Calls body(slot, count, token) for each part of [from, to) that is contiguous in the ring.
  template <class Body>
  KEYSIFT_INLINE void runs(int64_t from, int64_t to, Body body) const {
    while (from < to) {
      const int64_t slot = from % capacity, count = smaller(to - from, capacity - slot);
      body(slot, count, from);
      from += count;
    }
  }

  // Whether this head's part of the row is finite.
  bool load_queries() {
    bool finite = true;
    for (int64_t i = 0; i < group; ++i) {
      float* row = scratch.q + i * key_pad;
      const float* from = call.q + task.row * call.q_stride + (task.head * group + i) * w.key_width;
      read_row(reinterpret_cast<const char*>(from), KEYSIFT_F32, w.key_width, key_pad, row);
      place(call, layer, task.row, w.q_gain, w.q_eps, row);
      finite &= is_finite(row, w.key_width);
    }
    return finite;
  }

  // Stores a row in the cache. Returns whether it is finite there.
  bool append(const float* row, int64_t width, const void* memory) {
    const int32_t dtype = call.model->dtype;
    const int64_t slot = newest % capacity;
    char* to = const_cast<char*>(ring(memory, width)) + slot * width * element_bytes(dtype);
    write_row(row, dtype, width, to);
    if (!is_finite(row, width)) return false;
    if (dtype != KEYSIFT_F16) return true;
    for (int64_t i = 0; i < width; ++i) {
      if (row[i] > 65504.0f || row[i] < -65504.0f) return false;
    }
    return true;
  }

  bool append_key_and_value() {
    float* row = scratch.row;
    const float* key = call.k + task.row * call.k_stride + task.head * w.key_width;
    read_row(reinterpret_cast<const char*>(key), KEYSIFT_F32, w.key_width, key_pad, row);
    place(call, layer, task.row, w.k_gain, w.k_eps, row);
    const bool key_finite = append(row, w.key_width, cache.k);
    const bool value_finite = append(call.v + task.row * call.v_stride + task.head * w.value_width, w.value_width, cache.v);
    if (key_finite && value_finite) return true;
    __atomic_store_n(&layer.cache->finite, int64_t{0}, __ATOMIC_RELAXED);
    return false;
  }

  template <int Dtype>
  void softmax() {
    const int64_t stride = kPiece + kPad;
    const char *keys = ring(cache.k, w.key_width), *values = ring(cache.v, w.value_width);
    const vf scale = splat(static_cast<float>(1.0 / sqrt(static_cast<double>(w.key_width))));
    int64_t done = 0;
    runs(task.from, task.to, [&](int64_t slot, int64_t count, int64_t) {
      products_of_rows<Dtype, false>(keys, w.key_width, slot, slot + count, scratch.q, key_pad, group,
                                     [&](int64_t b, int64_t row, int rows, vf x, vf) {
                                       store_part(scratch.scores + b * stride + done + row - slot, x * scale, rows);
                                     });
      done += count;
    });
    for (int64_t i = 0; i < group; ++i) {
      float* scores = scratch.scores + i * stride;
      for (int64_t j = done; j % kLanes != 0; ++j) scores[j] = -__builtin_inff();
      vf tops = load(scores), total{};
      for (int64_t j = kLanes; j < done; j += kLanes) tops = load(scores + j) > tops ? load(scores + j) : tops;
      float top = tops[0];
      for (int l = 1; l < kLanes; ++l) top = larger(top, tops[l]);
      for (int64_t j = 0; j < done; j += kLanes) {
        const vf p = Exponential(load(scores + j) - splat(top)).power;
        store(scores + j, p);
        total += p;
      }
      float* out = partial(task.first_piece, i);
      memset(out, 0, static_cast<size_t>(value_pad) * 4);
      out[value_pad] = top;
      out[value_pad + 1] = sum(total);
      int64_t at = 0;
      runs(task.from, task.to, [&](int64_t slot, int64_t count, int64_t) {
        add_weighted_rows<Dtype>(values, w.value_width, nullptr, slot, scores + at, count, out);
        at += count;
      });
    }
  }

  template <int Dtype>
  void screening();

  // Large sums cancel here, so they meet in fp64.
  void combine_wide(float* out) const {
    double* total = wide_sums(0);
    for (int64_t t = 1; t < task.tasks; ++t) MomentSums::add_scaled_row(total, 1, wide_sums(t * kEpoch), value_pad);
    for (int64_t p = 0; p < task.pieces; ++p) {
      const float* piece = partial(p, 0);
      for (int64_t x = 0; piece[value_pad] != 0 && x < value_pad; ++x) total[x] += static_cast<double>(piece[x]);
    }
    for (int64_t x = 0; x < value_pad; ++x) out[x] = static_cast<float>(total[x]);
  }

  // Combines the pieces of a query and writes the input of the output projection.
  void finish(int64_t query) {
    float* out = scratch.sums;
    memset(out, 0, static_cast<size_t>(value_pad) * 4);
    const int64_t head = task.head * group + query;
    if (w.attention == KEYSIFT_SOFTMAX) {
      float top = partial(0, query)[value_pad], total = 0;
      for (int64_t p = 1; p < task.pieces; ++p) top = larger(top, partial(p, query)[value_pad]);
      for (int64_t p = 0; p < task.pieces; ++p) {
        const float* piece = partial(p, query);
        const float share = expf(piece[value_pad] - top);
        total += share * piece[value_pad + 1];
        for (int64_t x = 0; x < value_pad; x += kLanes) {
          store(out + x, load(out + x) + splat(share) * load(piece + x));
        }
      }
      const vf divisor = splat(total);
      for (int64_t x = 0; x < value_pad; x += kLanes) store(out + x, load(out + x) / divisor);
    } else {
      if (uses_moments(task.mode)) {
        combine_wide(out);
      } else {
        for (int64_t p = 0; p < task.pieces; ++p) {
          if (partial(p, query)[value_pad] != 0) add_scaled(out, 1.0f, partial(p, query), value_pad);
        }
      }
      const double length = row_length(out, value_pad);
      if (!(w.flags & KEYSIFT_NO_TANH) && length > 0) {
        scale_row(out, Factor(static_cast<double>(tanhf(static_cast<float>(length))) / length), value_pad);
      }
    }
    const vf scale = splat(w.head_scale ? w.head_scale[head] : 1.0f);
    const float* gate = call.gate + task.row * call.gate_stride + head * w.value_width;
    float* to = call.mixed + task.row * call.mixed_stride + head * w.value_width;
    for (int64_t x = 0; x < w.value_width; x += kLanes) {
      const int64_t count = smaller<int64_t>(kLanes, w.value_width - x);
      vf u = load(out + x) * scale;
      if (w.gate) u *= GateValue(load_part<KEYSIFT_F32>(gate + x, count)).value;
      store_part(to + x, u, count);
    }
  }

  template <int Dtype>
  void run() {
    bool finite = load_queries();
    if (task.last) finite &= append_key_and_value();
    if (w.attention == KEYSIFT_SOFTMAX) {
      softmax<Dtype>();
    } else {
      screening<Dtype>();
    }
    if (!finite) {
      for (int64_t i = 0; i < group; ++i) {
        float* out = partial(task.first_piece, i);
        for (int64_t x = 0; x <= value_pad; ++x) out[x] = x < w.value_width ? __builtin_nanf("") : 1.0f;
      }
    }
    if (__atomic_add_fetch(task.finished, 1, __ATOMIC_ACQ_REL) < task.tasks) return;
    for (int64_t i = 0; i < group; ++i) finish(i);
  }
};

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
