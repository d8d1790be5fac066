// A thin layer over the compiler's vector extensions. Arithmetic uses plain operators; operations that the extensions lack
// (comparison to bits, gather, horizontal sum) use intrinsics of each instruction set.
//
// Everything is in a namespace named after the variant, and code compiled per variant uses no standard-library
// templates: an inline function shared between variants would be merged by the linker into one, possibly the AVX-512 one.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

#define KEYSIFT_INLINE inline __attribute__((always_inline))
#if defined(__clang__)
#define KEYSIFT_UNROLL _Pragma("unroll")
#else
#define KEYSIFT_UNROLL _Pragma("GCC unroll 16")
#endif

namespace keysift {
namespace KEYSIFT_VARIANT {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float vf __attribute__((vector_size(kLanes * 4)));
typedef int32_t vi __attribute__((vector_size(kLanes * 4)));

template <class A>
KEYSIFT_INLINE A smaller(A a, A b) { return b < a ? b : a; }
template <class A>
KEYSIFT_INLINE A larger(A a, A b) { return a < b ? b : a; }
template <class A>
KEYSIFT_INLINE A clamp(A x, A low, A high) { return smaller(larger(x, low), high); }

// Half as many lanes, for sums in fp64.
typedef float vh __attribute__((vector_size(kLanes * 2)));
typedef double vd __attribute__((vector_size(kLanes * 4)));

KEYSIFT_INLINE vd load_wide(const float* p) {
  vh x;
  memcpy(&x, p, sizeof x);
  return __builtin_convertvector(x, vd);
}

KEYSIFT_INLINE vf load(const float* p) {
  vf x;
  memcpy(&x, p, sizeof x);
  return x;
}
KEYSIFT_INLINE vi load(const int32_t* p) {
  vi x;
  memcpy(&x, p, sizeof x);
  return x;
}
KEYSIFT_INLINE void store(float* p, vf x) { memcpy(p, &x, sizeof x); }

// x in every lane. x - 0 is x for every float, so the compiler drops the subtraction; it could not drop x + 0 (x = -0).
KEYSIFT_INLINE vf splat(float x) { return x - vf{}; }
KEYSIFT_INLINE vi splat(int32_t x) { return x - vi{}; }

KEYSIFT_INLINE vi lane_numbers() {
  vi x{};
  for (int l = 0; l < kLanes; ++l) x[l] = l;
  return x;
}

KEYSIFT_INLINE vf to_float(vi x) { return __builtin_convertvector(x, vf); }

constexpr int kFactors = 16;  // rows of a batch

// A factor as the sum of two floats. Rounding a factor to fp32 would shift every element of a row, and every score, in the
// same direction; the rounding errors of the elements themselves average out.
struct Factor {
  float high, low;
  KEYSIFT_INLINE Factor(float high_, float low_) : high(high_), low(low_) {}
  KEYSIFT_INLINE explicit Factor(double x) : high(static_cast<float>(x)), low(static_cast<float>(x - static_cast<double>(high))) {}
};

// Factors of a batch of rows, computed together so that the compiler vectorises divisions and roots.
struct Factors {
  float high[kFactors], low[kFactors];
  template <class Of>
  KEYSIFT_INLINE Factors(const double (&x)[kFactors], Of of) {
    for (int i = 0; i < kFactors; ++i) {
      const double factor = of(x[i]);
      high[i] = static_cast<float>(factor);
      low[i] = static_cast<float>(factor - static_cast<double>(high[i]));
    }
  }
  KEYSIFT_INLINE Factor at(int64_t i) const { return Factor(high[i], low[i]); }
};

// x * (high + low), rounded once.
KEYSIFT_INLINE vf times(vf x, vf high, vf low) {
#if defined(__AVX512F__)
  return (vf)_mm512_fmadd_ps((__m512)x, (__m512)high, (__m512)(x * low));
#elif defined(__FMA__)
  return (vf)_mm256_fmadd_ps((__m256)x, (__m256)high, (__m256)(x * low));
#else
  typedef double wide __attribute__((vector_size(kLanes * 8)));
  const wide factor = __builtin_convertvector(high, wide) + __builtin_convertvector(low, wide);
  return __builtin_convertvector(__builtin_convertvector(x, wide) * factor, vf);
#endif
}

// max(x, 0) that keeps NaN: NaN must reach the caller and not look like a refused key.
KEYSIFT_INLINE vf not_below_zero(vf x) { return x < vf{} ? vf{} : x; }
// max(x, 0) that turns NaN into 0.
KEYSIFT_INLINE vf positive(vf x) { return x > vf{} ? x : vf{}; }
KEYSIFT_INLINE vd positive(vd x) { return x > vd{} ? x : vd{}; }

KEYSIFT_INLINE vf gather(const float* base, vi index) {
#if defined(__AVX512F__)
  // The unmasked form makes gcc 12 warn about its own header.
  return (vf)_mm512_mask_i32gather_ps(_mm512_setzero_ps(), 0xffff, (__m512i)index, base, 4);
#elif defined(__AVX2__)
  return (vf)_mm256_i32gather_ps(base, (__m256i)index, 4);
#else
  vf x{};
  for (int l = 0; l < kLanes; ++l) x[l] = base[index[l]];
  return x;
#endif
}

// Bit l is set unless a[l] <= b[l], so it is set for NaN.
KEYSIFT_INLINE uint32_t bits_not_below(vf a, vf b) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_NLE_UQ);
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_NLE_UQ)));
#elif defined(__SSE2__)
  return static_cast<uint32_t>(_mm_movemask_ps(_mm_cmpnle_ps((__m128)a, (__m128)b)));
#else
  uint32_t bits = 0;
  const vi accepted = ~(a <= b);
  for (int l = 0; l < kLanes; ++l) bits |= (static_cast<uint32_t>(accepted[l]) & 1u) << l;
  return bits;
#endif
}

// x where the bit of the lane is set, else 0.
KEYSIFT_INLINE vf keep(uint32_t bits, vf x) {
#if defined(__AVX512F__)
  return (vf)_mm512_maskz_mov_ps(static_cast<__mmask16>(bits), (__m512)x);
#else
  vi lane_bit{};
  for (int l = 0; l < kLanes; ++l) lane_bit[l] = 1 << l;
  return (splat(static_cast<int32_t>(bits)) & lane_bit) != vi{} ? x : vf{};
#endif
}

// The lane of (a, b) that goes to lane l when two vectors are folded at `distance`: lanes with that bit clear take from a,
// the others from b; with `other`, the lane at that distance.
constexpr int fold_lane(int l, int distance, bool other) {
  return ((l & distance) ? kLanes : 0) + (other ? l ^ distance : l);
}

#define KEYSIFT_LANES4(f, l) f(l), f(l + 1), f(l + 2), f(l + 3)
#if defined(__AVX512F__)
#define KEYSIFT_LANES(f) KEYSIFT_LANES4(f, 0), KEYSIFT_LANES4(f, 4), KEYSIFT_LANES4(f, 8), KEYSIFT_LANES4(f, 12)
#elif defined(__AVX2__)
#define KEYSIFT_LANES(f) KEYSIFT_LANES4(f, 0), KEYSIFT_LANES4(f, 4)
#else
#define KEYSIFT_LANES(f) KEYSIFT_LANES4(f, 0)
#endif
#define KEYSIFT_OWN(l) fold_lane(l, Distance, false)
#define KEYSIFT_PARTNER(l) fold_lane(l, Distance, true)

template <int Distance>
KEYSIFT_INLINE vf fold(vf a, vf b) {
  return __builtin_shufflevector(a, b, KEYSIFT_LANES(KEYSIFT_OWN)) +
         __builtin_shufflevector(a, b, KEYSIFT_LANES(KEYSIFT_PARTNER));
}

// Lane l of the result is the sum of x[l]. x is overwritten.
template <int Distance = kLanes / 2>
KEYSIFT_INLINE vf sums(vf (&x)[kLanes]) {
  KEYSIFT_UNROLL for (int i = 0; i < Distance; ++i) x[i] = fold<Distance>(x[i], x[i + Distance]);
  if constexpr (Distance > 1) return sums<Distance / 2>(x);
  return x[0];
}

template <int Distance = kLanes / 2>
KEYSIFT_INLINE float sum(vf x) {
  x = fold<Distance>(x, x);
  if constexpr (Distance > 1) return sum<Distance / 2>(x);
  return x[0];
}

// The upper half of the lanes is added to the lower half until two are left.
KEYSIFT_INLINE double sum(vd x) {
#if defined(__AVX512F__)
  x += __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3);
  x += __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5);
#elif defined(__AVX2__)
  x += __builtin_shufflevector(x, x, 2, 3, 0, 1);
#endif
  return x[0] + x[1];
}

#undef KEYSIFT_PARTNER
#undef KEYSIFT_OWN
#undef KEYSIFT_LANES
#undef KEYSIFT_LANES4

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
