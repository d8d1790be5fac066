// Attention of one decoded token over the rings of a cache: softmax, and screening over prepared keys.
#pragma once

#include "decode_products.h"
#include "exponential.h"
#include "gate.h"
#include "screening_blocks.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

constexpr int64_t kAccepted = 256;  // accepted keys that are listed before their values are added
constexpr int kPrepared = KEYSIFT_PREPARED_KEYS;

// Buffers of a thread for one attention task.
struct AttendScratch {
  float *q, *row, *scores, *sums;
  AttendScratch(const keysift_decode_layer& w, ScratchLayout* layout)
      : q(layout->floats(w.heads / w.kv_heads * padded_width(w.key_width))),
        row(layout->floats(padded_width(w.key_width > w.value_width ? w.key_width : w.value_width))),
        scores(layout->floats(w.heads / w.kv_heads * (kPiece + kPad))),
        sums(layout->floats(padded_width(w.value_width))) {}
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
      float* out = partial(task.piece, i);
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

  KEYSIFT_INLINE float* blocks() const {
    return cache.prepared + (task.row * cache.blocks + layer.first_block[task.head]) * (w.key_width + 1) * kPrepared;
  }

  // Prepares the keys of tokens [from, to), and the inverse lengths of their values.
  void prepare(const Tile& tile, int64_t from, int64_t to) {
    const int32_t dtype = call.model->dtype;
    const char *keys = ring(cache.k, w.key_width), *values = ring(cache.v, w.value_width);
    for (int64_t token = from; token < to; ++token) {
      const int64_t slot = token % capacity;
      float* to_column = blocks() + slot / kPrepared * (w.key_width + 1) * kPrepared + slot % kPrepared;
      float* row = scratch.row;
      read_row(element(keys, dtype, slot * w.key_width), dtype, w.key_width, key_pad, row);
      scale_row(row, Factor(inverse_length(row, key_pad)), key_pad);
      if (tile.rotates) {
        float c, s;
        rotation_table(tile.turns_per_position, token, 1, &c, &s);
        rotate(row, c, s);
      }
      for (int64_t x = 0; x < w.key_width; ++x) to_column[x * kPrepared] = row[x];
      read_row(element(values, dtype, slot * w.value_width), dtype, w.value_width, value_pad, row);
      to_column[w.key_width * kPrepared] = static_cast<float>(inverse_length(row, value_pad));
    }
  }

  template <int Dtype>
  void screening() {
    const Tile tile = layer.tiles[task.head];
    int64_t from = larger(layer.cache->prepared_tokens[task.row], task.piece == 0 ? newest + 1 - capacity : task.from);
    from = smaller(from, newest);  // the newest key replaces another token's, also after a crop
    prepare(tile, larger(from, int64_t{0}), task.to);
    float* q = scratch.q;
    scale_row(q, Factor(inverse_length(q, key_pad)), key_pad);
    if (tile.rotates) {
      float c, s;
      rotation_table(tile.turns_per_position, newest, 1, &c, &s);
      rotate(q, c, s);
    }
    float* out = partial(task.piece, 0);
    memset(out, 0, static_cast<size_t>(value_pad) * 4);
    int64_t slots[kAccepted + kPrepared];
    float weights[kAccepted + kPrepared];
    int64_t listed = 0;
    const char* values = ring(cache.v, w.value_width);
    const int64_t row_bytes = w.value_width * element_bytes(Dtype);
    runs(task.from, task.to, [&](int64_t slot, int64_t count, int64_t token) {
      const int64_t end = slot + count;
      for (int64_t at = slot / kLanes * kLanes; at < end; at += kLanes) {
        const float* block = blocks() + at / kPrepared * (w.key_width + 1) * kPrepared + at % kPrepared;
        uint32_t accepted;
        const vf r = relevance(tile, q, block, newest - token + slot - at, at < slot ? slot - at : 0, end - at, &accepted);
        if (!accepted) continue;
        float each[kLanes];
        store(each, r);
        for (; accepted; accepted &= accepted - 1) {
          const int lane = __builtin_ctz(accepted);
          const char* value = values + (at + lane) * row_bytes;
          for (int64_t line = 0; line < row_bytes; line += 64) __builtin_prefetch(value + line);
          slots[listed] = at + lane;
          weights[listed++] = each[lane];
        }
        if (listed >= kAccepted) {
          add_weighted_rows<Dtype>(values, w.value_width, slots, 0, weights, listed, out);
          listed = 0;
        }
      }
    });
    add_weighted_rows<Dtype>(values, w.value_width, slots, 0, weights, listed, out);
  }

  // Relevance over the length of the value, for the keys of one vector. Lane 0 is at this distance; lanes in [from, to) are
  // visible.
  KEYSIFT_INLINE vf relevance(const Tile& tile, const float* q, const float* block, int64_t distance, int64_t from, int64_t to,
                              uint32_t* accepted) const {
    vf even{}, odd{};
    int64_t x = 0;
    for (; x + 2 <= w.key_width; x += 2) {
      even += splat(q[x]) * load(block + x * kPrepared);
      odd += splat(q[x + 1]) * load(block + (x + 1) * kPrepared);
    }
    if (x < w.key_width) even += splat(q[x]) * load(block + x * kPrepared);
    const vf score = even + odd;
    const uint32_t below_to = to >= kLanes ? (uint32_t{1} << (kLanes - 1)) * 2 - 1 : (uint32_t{1} << to) - 1;
    *accepted = bits_not_below(score, splat(tile.threshold)) & below_to & ~((uint32_t{1} << from) - 1);
    if (!*accepted) return vf{};
    const vf t = trim(tile, score);
    vf r = t * t * load(block + w.key_width * kPrepared);
    if (tile.fades) {
      const vf c = HalfAngle(tile, splat(static_cast<float>(distance)) - to_float(lane_numbers())).cosine();
      r *= c * c;
    }
    return r;
  }

  // Combines the pieces of a query and writes the input of the output projection.
  void finish(int64_t query) {
    float* out = scratch.sums;
    memcpy(out, partial(0, query), static_cast<size_t>(value_pad) * 4);
    const int64_t head = task.head * group + query;
    if (w.attention == KEYSIFT_SOFTMAX) {
      float top = partial(0, query)[value_pad], total = 0;
      for (int64_t p = 1; p < task.pieces; ++p) top = larger(top, partial(p, query)[value_pad]);
      for (int64_t p = 0; p < task.pieces; ++p) {
        const float* piece = partial(p, query);
        const float share = expf(piece[value_pad] - top);
        total += share * piece[value_pad + 1];
        for (int64_t x = 0; x < value_pad; x += kLanes) {
          store(out + x, (p == 0 ? vf{} : load(out + x)) + splat(share) * load(piece + x));
        }
      }
      const vf divisor = splat(total);
      for (int64_t x = 0; x < value_pad; x += kLanes) store(out + x, load(out + x) / divisor);
    } else {
      for (int64_t p = 1; p < task.pieces; ++p) add_scaled(out, 1.0f, partial(p, query), value_pad);
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
    if (task.piece == task.pieces - 1) finite &= append_key_and_value();
    if (w.attention == KEYSIFT_SOFTMAX) {
      softmax<Dtype>();
    } else {
      screening<Dtype>();
    }
    if (!finite) {
      for (int64_t i = 0; i < group; ++i) {
        for (int64_t x = 0; x < w.value_width; ++x) partial(task.piece, i)[x] = __builtin_nanf("");
      }
    }
    if (__atomic_add_fetch(task.finished, 1, __ATOMIC_ACQ_REL) < task.pieces) return;
    for (int64_t i = 0; i < group; ++i) finish(i);
  }
};

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
