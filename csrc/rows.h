// Rows in and out of memory: dtype conversion, unit length, rotation.
#pragma once

#include <math.h>

#include "plan.h"
#include "simd.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

KEYSIFT_INLINE float from_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
KEYSIFT_INLINE uint32_t to_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

KEYSIFT_INLINE uint16_t to_bf16(float x) {
  const uint32_t bits = to_bits(x);
  if (x != x) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

KEYSIFT_INLINE float from_f16(uint16_t half) {
#if defined(__F16C__)
  return _cvtsh_ss(half);
#else
  // After the shift the exponent is 112 too small; the multiplication corrects it, subnormals included.
  const float size = from_bits((half & 0x7fffu) << 13) * 0x1p112f;
  const uint32_t top = (half & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
  return from_bits(to_bits(size) | top | ((half & 0x8000u) << 16));
#endif
}

KEYSIFT_INLINE uint16_t to_f16(float x) {
  // The gradient of a short vector is up to 1e12 times the incoming gradient, and the API guarantees finite numbers.
  x = x > 65504.0f ? 65504.0f : (x < -65504.0f ? -65504.0f : x);
#if defined(__F16C__)
  return _cvtss_sh(x, 0);
#else
  const uint32_t sign = (to_bits(x) >> 16) & 0x8000u;
  if (x != x) return static_cast<uint16_t>(sign | 0x7e00u);
  const float size = from_bits(to_bits(x) & 0x7fffffffu);
  if (size < 0x1p-14f) {
    // Adding 0.5 leaves exactly the 2^-24 grid of f16 subnormals in the last bits, rounded to even.
    return static_cast<uint16_t>(sign | (to_bits(size + 0.5f) - to_bits(0.5f)));
  }
  const uint32_t bits = to_bits(size);
  return static_cast<uint16_t>(sign | ((bits + 0xfff + ((bits >> 13) & 1) - (112u << 23)) >> 13));
#endif
}

KEYSIFT_INLINE int64_t element_bytes(int32_t dtype) { return dtype == KEYSIFT_F32 ? 4 : 2; }

KEYSIFT_INLINE const char* row_of(const keysift_view& view, int32_t dtype, int64_t b, int64_t tile, int64_t row) {
  const int64_t at = b * view.batch_stride + tile * view.tile_stride + row * view.row_stride;
  return static_cast<const char*>(view.data) + at * element_bytes(dtype);
}

// Reads `width` elements as fp32 and fills up to `padded` with zeros.
KEYSIFT_INLINE void read_row(const char* from, int32_t dtype, int64_t width, int64_t padded, float* to) {
  if (dtype == KEYSIFT_F32) {
    memcpy(to, from, static_cast<size_t>(width) * 4);
  } else {
    const uint16_t* half = reinterpret_cast<const uint16_t*>(from);
    if (dtype == KEYSIFT_BF16) {
      for (int64_t x = 0; x < width; ++x) to[x] = from_bits(static_cast<uint32_t>(half[x]) << 16);
    } else {
      for (int64_t x = 0; x < width; ++x) to[x] = from_f16(half[x]);
    }
  }
  for (int64_t x = width; x < padded; ++x) to[x] = 0;
}

KEYSIFT_INLINE void write_row(const float* from, int32_t dtype, int64_t width, char* to) {
  if (dtype == KEYSIFT_F32) {
    memcpy(to, from, static_cast<size_t>(width) * 4);
  } else {
    uint16_t* half = reinterpret_cast<uint16_t*>(to);
    if (dtype == KEYSIFT_BF16) {
      for (int64_t x = 0; x < width; ++x) half[x] = to_bf16(from[x]);
    } else {
      for (int64_t x = 0; x < width; ++x) half[x] = to_f16(from[x]);
    }
  }
}

// Width is a compile-time constant where the caller knows it, so the loops below unroll.
KEYSIFT_INLINE float dot(const float* a, const float* b, int64_t padded) {
  vf s{};
  for (int64_t x = 0; x < padded; x += kLanes) s += load(a + x) * load(b + x);
  return sum(s);
}

KEYSIFT_INLINE void add_scaled(float* to, float scale, const float* from, int64_t padded) {
  for (int64_t x = 0; x < padded; x += kLanes) store(to + x, load(to + x) + splat(scale) * load(from + x));
}

KEYSIFT_INLINE void scale_row(float* row, Factor by, int64_t padded) {
  for (int64_t x = 0; x < padded; x += kLanes) store(row + x, times(load(row + x), splat(by.high), splat(by.low)));
}

// The square of a row's length.
KEYSIFT_INLINE double row_square(const float* row, int64_t padded) {
  vd squares{};
  for (int64_t x = 0; x < padded; x += kLanes / 2) {
    const vd v = load_wide(row + x);
    squares += v * v;
  }
  return sum(squares);
}

KEYSIFT_INLINE double row_length(const float* row, int64_t padded) { return sqrt(row_square(row, padded)); }

KEYSIFT_INLINE double inverse_length(const float* row, int64_t padded) {
  return 1.0 / larger(row_length(row, padded), kUnitEps);
}

// cos and sin of the MiPE angle of positions at, at + 1, ... The angle is reduced to a fraction of a turn in fp64
// before anything is rounded, so a position in the millions is as exact as position 0.
inline __attribute__((noinline)) void rotation_table(double turns_per_position, int64_t at, int64_t count, float* cosines,
                                                 float* sines) {
  constexpr double kRound = 6755399441055744.0;  // adding and subtracting 1.5 * 2^52 rounds to an integer
  for (int64_t x = 0; x < count; ++x) {
    const double turns = static_cast<double>(at + x) * turns_per_position;
    const double part = turns - ((turns + kRound) - kRound);
    const double quarter = (part * 4 + kRound) - kRound;
    const double angle = (part - quarter * 0.25) * 6.283185307179586;
    const double z = angle * angle;
    const double s = angle * (1 + z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880)))));
    const double c = 1 + z * (-0.5 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 + z * (-1.0 / 3628800)))));
    const bool odd = quarter == 1 || quarter == -1;
    const bool behind = quarter == 2 || quarter == -2;
    const double cos_q = odd ? 0 : (behind ? -1 : 1);
    const double sin_q = odd ? quarter : 0;
    cosines[x] = static_cast<float>(c * cos_q - s * sin_q);
    sines[x] = static_cast<float>(s * cos_q + c * sin_q);
  }
}

KEYSIFT_INLINE void rotate(float* row, float c, float s) {
  const float x = row[0], y = row[1];
  row[0] = x * c - y * s;
  row[1] = x * s + y * c;
}

// TanhNorm's gradient: dh = from_du * du + from_h * <du, h> * h, with from_du = tanh n / n and
// from_h = (n sech^2 n - tanh n) / n^3, by their series where n is small.
struct TanhSlope {
  double from_du, from_h;
  KEYSIFT_INLINE explicit TanhSlope(double n) {
    const double z = n * n;
    if (n < 0.05) {
      from_du = 1 - z / 3 + 2 * z * z / 15;
      from_h = -2.0 / 3 + z * (8.0 / 15 + z * (-34.0 / 105 + z * (496.0 / 2835)));
    } else {
      const double th = tanh(n);
      from_du = th / n;
      from_h = (n * (1 - th * th) - th) / (z * n);
    }
  }
};

// The gradient of unit(x) = x / max(|x|, eps): inverse is 1 / max(|x|, eps), unit the unit row; d is overwritten.
KEYSIFT_INLINE void unit_gradient(float* d, const float* unit, double inverse, int64_t padded) {
  // A row shorter than eps or with a non-finite length has no direction, so its gradient is zero.
  if (inverse >= 1.0 / kUnitEps || !(inverse > 0)) {
    for (int64_t i = 0; i < padded; ++i) d[i] = 0;
    return;
  }
  add_scaled(d, -dot(d, unit, padded), unit, padded);
  scale_row(d, Factor(inverse), padded);
}

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
