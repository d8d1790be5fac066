// Kernels of thresholds.h for one row: scores to weights, and gradients of weights to gradients of scores.
#pragma once

#include <math.h>

#include "simd.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

constexpr int kHalf = kLanes / 2;  // numbers in a vector of fp64
constexpr int kNewtonSteps = 100;
constexpr double kNewtonStop = 1e-12;

KEYSIFT_INLINE double total(vd x) {
  double sum = 0;
  for (int l = 0; l < kHalf; ++l) sum += x[l];
  return sum;
}

// The largest of n numbers, NaN if any of them is.
inline float largest(const float* x, int64_t n) {
  vf maxima[4], nans{};
  for (vf& value : maxima) value = splat(-__builtin_inff());
  int64_t j = 0;
  for (; j + 4 * kLanes <= n; j += 4 * kLanes) {
    KEYSIFT_UNROLL for (int i = 0; i < 4; ++i) {
      const vf v = load(x + j + i * kLanes);
      maxima[i] = v > maxima[i] ? v : maxima[i];
      nans = v == v ? nans : v;
    }
  }
  float max_score = -__builtin_inff(), nan = 0;
  for (; j < n; ++j) {
    max_score = x[j] > max_score ? x[j] : max_score;
    nan = x[j] == x[j] ? nan : x[j];
  }
  for (int l = 0; l < kLanes; ++l) {
    for (const vf& value : maxima) max_score = larger(max_score, value[l]);
    nan = nans[l] == nans[l] ? nan : nans[l];
  }
  return nan == nan ? max_score : nan;
}

// Copies the numbers above `floor` and returns their count. `to` has space for kLanes more.
inline int64_t copy_above(const float* x, int64_t n, float floor, float* to) {
  int64_t count = 0, j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    const vf v = load(x + j);
    uint32_t bits = bits_not_below(v, splat(floor));
    if (bits == 0) continue;
#if defined(__AVX512F__)
    _mm512_storeu_ps(to + count, _mm512_maskz_compress_ps(static_cast<__mmask16>(bits), (__m512)v));
    count += __builtin_popcount(bits);
#else
    for (; bits != 0; bits &= bits - 1) to[count++] = x[j + __builtin_ctz(bits)];
#endif
  }
  for (; j < n; ++j) {
    if (x[j] > floor) to[count++] = x[j];
  }
  return count;
}

// Sparsemax, entmax-1.5, or any other order, which needs pow().
enum ThresholdKind { kLinear, kSquare, kPower };

inline ThresholdKind kind_of(float order) { return order == 2.0f ? kLinear : order == 1.5f ? kSquare : kPower; }

// The sum of u^power over u = (order - 1) (x - max_score) - tau above 0, and minus its derivative in tau.
template <int Kind>
KEYSIFT_INLINE void sum_and_slope(const float* x, int64_t n, double max_score, double order_minus_1, double tau, double* sum,
                                  double* slope) {
  if constexpr (Kind == kPower) {
    const double power = 1 / order_minus_1;
    *sum = *slope = 0;
    for (int64_t j = 0; j < n; ++j) {
      const double u = order_minus_1 * (static_cast<double>(x[j]) - max_score) - tau;
      if (!(u > 0)) continue;
      const double w = pow(u, power);
      *sum += w;
      *slope += w / u;
    }
    *slope *= power;
  } else {
    vd sums{}, slopes{};
    const vd one = 1.0 - vd{};
    for (int64_t j = 0; j < n; j += kHalf) {  // the padding is below every tau
      const vd u = positive(order_minus_1 * (load_wide(x + j) - max_score) - tau);
      sums += Kind == kLinear ? u : u * u;
      slopes += Kind == kLinear ? (u > vd{} ? one : vd{}) : u + u;
    }
    *sum = total(sums);
    *slope = total(slopes);
  }
}

// Newton's method from tau = -1, where the sum is at least 1. The sum is convex in tau, so tau increases and never overshoots.
template <int Kind>
inline double solve(const float* x, int64_t n, double max_score, double order_minus_1) {
  double tau = -1;
  for (int i = 0; i < kNewtonSteps; ++i) {
    double sum, slope;
    sum_and_slope<Kind>(x, n, max_score, order_minus_1, tau, &sum, &slope);
    const double step = (sum - 1) / slope;
    if (!(step > kNewtonStop)) break;
    tau += step;
  }
  return tau;
}

template <int Kind>
inline void weigh_row(float* x, int64_t n, float max_score, double order_minus_1, float* scratch) {
  // A key this far below the maximum has weight zero for every tau; one float lower, because the floor is rounded.
  const float floor = nextafterf(static_cast<float>(static_cast<double>(max_score) - 1 / order_minus_1), -__builtin_inff());
  const int64_t count = copy_above(x, n, floor, scratch);
  for (int l = 0; l < kLanes; ++l) scratch[count + l] = -__builtin_inff();
  const double tau = solve<Kind>(scratch, count, static_cast<double>(max_score), order_minus_1);
  if constexpr (Kind == kPower) {
    for (int64_t j = 0; j < n; ++j) {
      const double u = x[j] > floor ? order_minus_1 * (static_cast<double>(x[j]) - static_cast<double>(max_score)) - tau : 0;
      x[j] = u > 0 ? static_cast<float>(pow(u, 1 / order_minus_1)) : 0.0f;
    }
    return;
  }
  // As two floats: rounding tau once would shift every weight in the same direction, and with them their sum.
  const Factor threshold(tau);
  const float factor = static_cast<float>(order_minus_1);
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    const vf u = positive((load(x + j) - splat(max_score)) * splat(factor) - splat(threshold.high) - splat(threshold.low));
    store(x + j, Kind == kLinear ? u : u * u);
  }
  for (; j < n; ++j) {
    const float u = larger((x[j] - max_score) * factor - threshold.high - threshold.low, 0.0f);
    x[j] = Kind == kLinear ? u : u * u;
  }
}

inline void threshold_weigh(float* x, int64_t visible, int64_t keys, float order, char* scratch) {
  memset(x + visible, 0, static_cast<size_t>(keys - visible) * 4);
  if (visible == 0) return;
  const float max_score = largest(x, visible);
  if (!(max_score - max_score == 0)) {
    for (int64_t j = 0; j < visible; ++j) x[j] = __builtin_nanf("");
    return;
  }
  float* buffer = reinterpret_cast<float*>(scratch);
  const double order_minus_1 = static_cast<double>(order) - 1;
  const ThresholdKind kind = kind_of(order);
  if (kind == kLinear) return weigh_row<kLinear>(x, visible, max_score, order_minus_1, buffer);
  if (kind == kSquare) return weigh_row<kSquare>(x, visible, max_score, order_minus_1, buffer);
  weigh_row<kPower>(x, visible, max_score, order_minus_1, buffer);
}

// dx = s (dw - mean of dw weighted by s), s = w^(2 - order) on the support.
template <int Kind>
inline void differentiate_row(const float* w, float* dw, int64_t n, double order_minus_1, float* s) {
  if constexpr (Kind == kLinear) {
    for (int64_t j = 0; j < n; ++j) s[j] = w[j] > 0 ? 1.0f : 0.0f;
  } else if constexpr (Kind == kSquare) {
    for (int64_t j = 0; j < n; ++j) s[j] = sqrtf(w[j]);
  } else {
    for (int64_t j = 0; j < n; ++j) s[j] = w[j] > 0 ? static_cast<float>(pow(static_cast<double>(w[j]), 1 - order_minus_1)) : 0.0f;
  }
  vd weights{}, products{};
  int64_t j = 0;
  for (; j + kHalf <= n; j += kHalf) {
    const vd value = load_wide(s + j);
    weights += value;
    products += value * load_wide(dw + j);
  }
  double weight = total(weights), product = total(products);
  for (; j < n; ++j) {
    weight += static_cast<double>(s[j]);
    product += static_cast<double>(s[j]) * static_cast<double>(dw[j]);
  }
  const float mean = static_cast<float>(weight > 0 || weight != weight ? product / weight : 0.0);
  for (int64_t i = 0; i < n; ++i) dw[i] = s[i] * (dw[i] - mean);
}

// The gradient of the order; dw is the gradient of the weights.
inline double order_gradient(const float* w, const float* dw, int64_t n, double order_minus_1) {
  double slope = 0, entropy = 0, by_weight = 0, by_slope = 0, by_entropy = 0;
  for (int64_t j = 0; j < n; ++j) {
    if (w[j] == 0) continue;
    const double value = static_cast<double>(w[j]), d = static_cast<double>(dw[j]);
    const double s = pow(value, 1 - order_minus_1), e = value * log(value);
    slope += s;
    entropy += e;
    by_weight += d * value;
    by_slope += d * s;
    by_entropy += d * e;
  }
  if (slope == 0) return 0;
  return (by_weight - by_slope / slope) / (order_minus_1 * order_minus_1) -
         (by_entropy - by_slope / slope * entropy) / order_minus_1;
}

inline void threshold_differentiate(const float* w, float* dw, int64_t visible, int64_t keys, float order, double* dorder,
                                    char* scratch) {
  memset(dw + visible, 0, static_cast<size_t>(keys - visible) * 4);
  float* buffer = reinterpret_cast<float*>(scratch);
  const double order_minus_1 = static_cast<double>(order) - 1;
  if (dorder) *dorder = order_gradient(w, dw, visible, order_minus_1);
  const ThresholdKind kind = kind_of(order);
  if (kind == kLinear) return differentiate_row<kLinear>(w, dw, visible, order_minus_1, buffer);
  if (kind == kSquare) return differentiate_row<kSquare>(w, dw, visible, order_minus_1, buffer);
  differentiate_row<kPower>(w, dw, visible, order_minus_1, buffer);
}

inline int64_t threshold_scratch(int64_t keys) { return (keys + 2 * kLanes) * 4; }

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
