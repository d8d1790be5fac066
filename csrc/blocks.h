// Blocks of keys and batches of queries: widths, scratch memory, and which pairs are visible.
#pragma once

#include "plan.h"
#include "simd.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

// Key and value width, known at compile time where positive.
template <int KeyWidth, int ValueWidth>
struct Shape {
  int64_t key_width, value_width;
  explicit Shape(const keysift_problem& p) : key_width(p.key_width), value_width(p.value_width) {}
  KEYSIFT_INLINE static int64_t pad(int64_t width) { return (width + kLanes - 1) / kLanes * kLanes; }
  KEYSIFT_INLINE int64_t key() const { return KeyWidth ? KeyWidth : key_width; }
  KEYSIFT_INLINE int64_t value() const { return ValueWidth ? ValueWidth : value_width; }
  KEYSIFT_INLINE int64_t key_pad() const { return pad(key()); }
  KEYSIFT_INLINE int64_t value_pad() const { return pad(value()); }
};

// Divides one allocation into buffers that start on cache lines. With start NULL it only counts bytes, so that the same
// code computes the size of the allocation.
struct ScratchLayout {
  char* start;
  int64_t bytes = 0;
  KEYSIFT_INLINE float* floats(int64_t count) {
    float* part = start ? reinterpret_cast<float*>(start + bytes) : nullptr;
    bytes += (count * 4 + 63) / 64 * 64;
    return part;
  }
};

// Keys [from, to) of a block.
struct KeySpan {
  int from, to;
};

// The number of keys in the block; the last block of a segment may not be full.
KEYSIFT_INLINE int keys_in_block(const keysift_segment& segment, int64_t block_key) {
  return static_cast<int>(clamp<int64_t>(segment.keys - block_key, 0, kBlock));
}

// Position of a batch of queries relative to a block of keys.
struct Placement {
  int64_t first;      // distance of the batch's first query from the block's first key
  int64_t span;       // distances 0 .. span-1 are visible
  int queries;        // queries in the batch
  int keys;           // keys in the block
  // The keys that query i of the batch sees.
  KEYSIFT_INLINE KeySpan visible(int i) const {
    if (i >= queries) return {0, 0};
    const int64_t from = clamp<int64_t>(first + i - span + 1, 0, kBlock);
    const int64_t to = clamp<int64_t>(first + i + 1, 0, keys);
    return {static_cast<int>(from), static_cast<int>(larger(from, to))};
  }
};

// Whether any pair may be accepted, checked before the block is packed and scored. Only causality and the window decide;
// a bound on the scores of a whole block would be checked here too.
KEYSIFT_INLINE bool may_pass(const Placement& at) {
  return at.first + at.queries - 1 >= 0 && at.first - at.span + 1 < at.keys && at.keys > 0;
}

KEYSIFT_INLINE uint64_t bits_between(KeySpan s) {
  const uint64_t below_to = s.to >= 64 ? ~uint64_t{0} : (uint64_t{1} << s.to) - 1;
  const uint64_t below_from = s.from >= 64 ? ~uint64_t{0} : (uint64_t{1} << s.from) - 1;
  return below_to & ~below_from;
}

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
