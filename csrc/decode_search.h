// Exact search: keys that cannot be accepted are refused by a bound on their score, from sketches or from groups (search_layout.h).
//
// With a query q of length 1 and its own copy q^ in 16 bits:
//     <q, k> <= <q^, k^> + |q - q^| (1 + e) + e          for a sketch k^ with |k - k^| <= e
//     <q, k> <= cos(max(0, angle(q, c) - rho))           for a member k of a group with centre c
// A key is refused if the bound, rounding included, is at most the threshold. Every other key is judged in fp32.
#pragma once

#include "rows.h"
#include "search_layout.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

// Writes the sketch of a prepared key, whose channels are kBlockKeys floats apart.
KEYSIFT_INLINE void sketch_key(const float* column, int64_t key_width, unsigned char* block, int64_t lane) {
  const double step = 1.0 / static_cast<double>(kSketchScale);
  double square = 0;
  bool fits = true;
  for (int64_t x = 0; x < key_width; ++x) {
    const float value = column[x * kBlockKeys];
    const bool near = value >= -1.00001f && value <= 1.00001f;  // false for NaN
    fits &= near;
    const float scaled = near ? value * static_cast<float>(kSketchScale) : 0.0f;
    const int rounded = clamp(static_cast<int>(scaled + (scaled < 0 ? -0.5f : 0.5f)), -127, 127);
    const double difference = static_cast<double>(value) - rounded * step;
    square += difference * difference;
    block[x / 4 * 4 * kBlockKeys + lane * 4 + x % 4] = static_cast<unsigned char>(static_cast<int8_t>(rounded));
  }
  const double units = sqrt(square) / sketch_error_unit(key_width);
  const bool certified = fits && units <= kNoSketch - 2;
  block[(key_width + 3) / 4 * 4 * kBlockKeys + lane] =
      static_cast<unsigned char>(certified ? static_cast<int>(units) + 1 : kNoSketch);
}

// The query's copy, as pairs of 16-bit numbers for channels 0 and 2, and 1 and 3, of each four.
struct QuerySketch {
  int32_t even[kSearchWidth / 4], odd[kSearchWidth / 4];
  int64_t quads;
  double step;   // of the copy
  double error;  // |q - q^|
  bool finite;

  QuerySketch(const float* q, int64_t key_width) : quads((key_width + 3) / 4) {
    float largest = 0;
    finite = true;
    for (int64_t x = 0; x < key_width; ++x) {
      finite &= q[x] >= -1.00001f && q[x] <= 1.00001f;
      largest = larger(largest, q[x] < 0 ? -q[x] : q[x]);
    }
    step = 0;
    error = 0;
    if (!finite) return;
    const double scale = largest > 0 ? 32767.0 / static_cast<double>(largest) : 0;
    step = static_cast<double>(largest) / 32767.0;
    double square = 0;
    for (int64_t quad = 0; quad < quads; ++quad) {
      int32_t part[4] = {};
      for (int64_t x = 0; x < 4 && quad * 4 + x < key_width; ++x) {
        const double value = static_cast<double>(q[quad * 4 + x]), scaled = value * scale;
        part[x] = clamp(static_cast<int32_t>(scaled + (scaled < 0 ? -0.5 : 0.5)), -32767, 32767);
        const double difference = value - part[x] * step;
        square += difference * difference;
      }
      even[quad] = static_cast<int32_t>((static_cast<uint32_t>(part[0]) & 0xffffu) | static_cast<uint32_t>(part[2]) << 16);
      odd[quad] = static_cast<int32_t>((static_cast<uint32_t>(part[1]) & 0xffffu) | static_cast<uint32_t>(part[3]) << 16);
    }
    error = sqrt(square) * (1 + 1e-9);
  }

  // Integer products with the sketches of kLanes keys of a block. They are exact.
  KEYSIFT_INLINE vi products(const unsigned char* block, int lane) const {
    vi sum{};
    for (int64_t quad = 0; quad < quads; ++quad) {
      vi keys;
      memcpy(&keys, block + quad * 4 * kBlockKeys + lane * 4, sizeof keys);
#if defined(__AVX512F__)
      const __m512i low = _mm512_srai_epi16(_mm512_slli_epi16((__m512i)keys, 8), 8), high = _mm512_srai_epi16((__m512i)keys, 8);
      sum += (vi)_mm512_madd_epi16(low, _mm512_set1_epi32(even[quad])) + (vi)_mm512_madd_epi16(high, _mm512_set1_epi32(odd[quad]));
#elif defined(__AVX2__)
      const __m256i low = _mm256_srai_epi16(_mm256_slli_epi16((__m256i)keys, 8), 8), high = _mm256_srai_epi16((__m256i)keys, 8);
      sum += (vi)_mm256_madd_epi16(low, _mm256_set1_epi32(even[quad])) + (vi)_mm256_madd_epi16(high, _mm256_set1_epi32(odd[quad]));
#else
      sum += ((keys << 24) >> 24) * splat(static_cast<int32_t>(static_cast<int16_t>(even[quad])));
      sum += ((keys << 16) >> 24) * splat(static_cast<int32_t>(static_cast<int16_t>(odd[quad])));
      sum += ((keys << 8) >> 24) * splat(even[quad] >> 16) + (keys >> 24) * splat(odd[quad] >> 16);
#endif
    }
    return sum;
  }
};

// kLanes bytes as floats.
KEYSIFT_INLINE vf bytes_to_floats(const unsigned char* p) {
  typedef uint8_t bytes __attribute__((vector_size(kLanes)));
  bytes x;
  memcpy(&x, p, sizeof x);
  return to_float(__builtin_convertvector(x, vi));
}

// Tests sketches: a bit is set for every key that may be accepted.
struct SketchTest {
  const QuerySketch& q;
  vf scale, unit, limit;
  SketchTest(const QuerySketch& query, int64_t key_width, float threshold) : q(query) {
    scale = splat(static_cast<float>(q.step / static_cast<double>(kSketchScale)));
    unit = splat(static_cast<float>(sketch_error_unit(key_width) * (1 + q.error)));
    limit = splat(static_cast<float>(static_cast<double>(threshold) - q.error - score_slack(key_width)));
  }
  KEYSIFT_INLINE uint32_t open(const unsigned char* block, int lane) const {
    const vf error = bytes_to_floats(block + q.quads * 4 * kBlockKeys + lane);
    const vf unbounded = splat(static_cast<float>(kNoSketch));
    const vf bound = to_float(q.products(block, lane)) * scale + error * unit;
    return bits_not_below(error < unbounded ? bound : splat(__builtin_inff()), limit);
  }
};

// Tests sketches the other way round: a bit is set for every key that may be refused. The same bound holds for -q, so
//     <q, k> >= <q^, k^> - |q - q^| (1 + e) - e
struct AcceptTest {
  const QuerySketch& q;
  vf scale, unit, limit;
  AcceptTest(const QuerySketch& query, int64_t key_width, float threshold) : q(query) {
    scale = splat(static_cast<float>(q.step / static_cast<double>(kSketchScale)));
    unit = splat(static_cast<float>(sketch_error_unit(key_width) * (1 + q.error)));
    limit = splat(static_cast<float>(static_cast<double>(threshold) + q.error + score_slack(key_width)));
  }
  KEYSIFT_INLINE uint32_t open(const unsigned char* block, int lane) const {
    const vf error = bytes_to_floats(block + q.quads * 4 * kBlockKeys + lane);
    const vf unbounded = splat(static_cast<float>(kNoSketch));
    const vf bound = to_float(q.products(block, lane)) * scale - error * unit;
    const uint32_t lanes = (uint32_t{1} << (kLanes - 1)) * 2 - 1;
    return lanes & ~bits_not_below(error < unbounded ? bound : splat(-__builtin_inff()), limit);
  }
};

// Tests centres: a bit is set for every group that may hold an accepted key.
struct GroupTest {
  const QuerySketch& q;
  vf step, error, limit, slack;
  GroupTest(const QuerySketch& query, int64_t key_width, float threshold) : q(query) {
    step = splat(static_cast<float>(q.step));
    error = splat(static_cast<float>(q.error + score_slack(key_width)));
    limit = splat(static_cast<float>(static_cast<double>(threshold) - score_slack(key_width)));
    slack = splat(1e-6f);
  }
  KEYSIFT_INLINE uint32_t may_pass(const unsigned char* block, int lane) const {
    const float* numbers = reinterpret_cast<const float*>(block + q.quads * 4 * kBlockKeys) + lane;
    const vf inverse = load(numbers), near = load(numbers + kBlockKeys), far = load(numbers + 2 * kBlockKeys);
    const vf u = to_float(q.products(block, lane)) * step * inverse + error;  // at least the cosine with the centre
    // 1 - u^2 is exact to 3e-7; the sine must not come out too small.
    vf sine = positive(splat(1.0f) - u * u) + slack;
    for (int l = 0; l < kLanes; ++l) sine[l] = sqrtf(sine[l]);
    const vf bound = u < near ? u * near + sine * far : splat(1.0f);
    return bits_not_below(bound, limit);
  }
};

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
