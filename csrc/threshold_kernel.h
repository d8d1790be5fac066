// One row of scores into weights, and gradients of weights into gradients of scores; see thresholds.h.
#pragma once

#include <math.h>

#include "blocks.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

constexpr int kHalf = kLanes / 2;  // numbers in a vector of fp64
constexpr int kNewtonSteps = 100;
constexpr double kNewtonStop = 1e-12;

KEYSIFT_INLINE double total(vd x) {
  double found = 0;
  for (int l = 0; l < kHalf; ++l) found += x[l];
  return found;
}

// The largest of n numbers, NaN if any of them is.
inline float largest(const float* x, int64_t n) {
  vf most[4], odd{};
  for (vf& each : most) each = all(-__builtin_inff());
  int64_t j = 0;
  for (; j + 4 * kLanes <= n; j += 4 * kLanes) {
    KEYSIFT_UNROLL for (int i = 0; i < 4; ++i) {
      const vf found = load(x + j + i * kLanes);
      most[i] = found > most[i] ? found : most[i];
      odd = found == found ? odd : found;
    }
  }
  float top = -__builtin_inff(), nan = 0;
  for (; j < n; ++j) {
    top = x[j] > top ? x[j] : top;
    nan = x[j] == x[j] ? nan : x[j];
  }
  for (int l = 0; l < kLanes; ++l) {
    for (const vf& each : most) top = larger(top, each[l]);
    nan = odd[l] == odd[l] ? nan : odd[l];
  }
  return nan == nan ? top : nan;
}

// Copies those of n numbers that are above `floor`; returns how many. `to` has room for kLanes more.
inline int64_t copy_above(const float* x, int64_t n, float floor, float* to) {
  int64_t count = 0, j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    const vf found = load(x + j);
    uint32_t bits = bits_not_below(found, all(floor));
    if (bits == 0) continue;
#if defined(__AVX512F__)
    _mm512_storeu_ps(to + count, _mm512_maskz_compress_ps(static_cast<__mmask16>(bits), (__m512)found));
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

// Sparsemax, entmax-1.5, or any other order: the last takes powers.
enum ThresholdKind { kLinear, kSquare, kPower };

inline ThresholdKind kind_of(float order) { return order == 2.0f ? kLinear : order == 1.5f ? kSquare : kPower; }

// The sum of u^power over u = (order - 1) (x - top) - tau above 0, and its slope: what it falls by as tau grows.
template <int Kind>
KEYSIFT_INLINE void add_up(const float* x, int64_t n, double top, double tilt, double tau, double* sum, double* slope) {
  if constexpr (Kind == kPower) {
    const double power = 1 / tilt;
    *sum = *slope = 0;
    for (int64_t j = 0; j < n; ++j) {
      const double u = tilt * (static_cast<double>(x[j]) - top) - tau;
      if (!(u > 0)) continue;
      const double w = pow(u, power);
      *sum += w;
      *slope += w / u;
    }
    *slope *= power;
  } else {
    vd sums{}, slopes{};
    const vd one = 1.0 - vd{};
    for (int64_t j = 0; j < n; j += kHalf) {  // after the last come numbers below every tau
      const vd u = positive(tilt * (load_wide(x + j) - top) - tau);
      sums += Kind == kLinear ? u : u * u;
      slopes += Kind == kLinear ? (u > vd{} ? one : vd{}) : u + u;
    }
    *sum = total(sums);
    *slope = total(slopes);
  }
}

// From tau = -1 on, where the sum is at least 1, Newton's steps go up and never past the solution, because the sum is
// convex in tau.
template <int Kind>
inline double solve(const float* x, int64_t n, double top, double tilt) {
  double tau = -1;
  for (int i = 0; i < kNewtonSteps; ++i) {
    double sum, slope;
    add_up<Kind>(x, n, top, tilt, tau, &sum, &slope);
    const double step = (sum - 1) / slope;
    if (!(step > kNewtonStop)) break;
    tau += step;
  }
  return tau;
}

template <int Kind>
inline void weigh_row(float* x, int64_t n, float top, double tilt, float* scratch) {
  // A key this far below the largest has no weight, whatever tau is; one step lower, because the floor is rounded.
  const float floor = nextafterf(static_cast<float>(static_cast<double>(top) - 1 / tilt), -__builtin_inff());
  const int64_t count = copy_above(x, n, floor, scratch);
  for (int l = 0; l < kLanes; ++l) scratch[count + l] = -__builtin_inff();
  const double tau = solve<Kind>(scratch, count, static_cast<double>(top), tilt);
  if constexpr (Kind == kPower) {
    for (int64_t j = 0; j < n; ++j) {
      const double u = x[j] > floor ? tilt * (static_cast<double>(x[j]) - static_cast<double>(top)) - tau : 0;
      x[j] = u > 0 ? static_cast<float>(pow(u, 1 / tilt)) : 0.0f;
    }
    return;
  }
  // In two parts, because one rounding of tau would move every weight the same way, and with them their sum.
  const Factor threshold(tau);
  const float half = static_cast<float>(tilt);
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    const vf u = positive((load(x + j) - all(top)) * all(half) - all(threshold.high) - all(threshold.low));
    store(x + j, Kind == kLinear ? u : u * u);
  }
  for (; j < n; ++j) {
    const float u = larger((x[j] - top) * half - threshold.high - threshold.low, 0.0f);
    x[j] = Kind == kLinear ? u : u * u;
  }
}

inline void threshold_weigh(float* x, int64_t seen, int64_t keys, float order, char* scratch) {
  memset(x + seen, 0, static_cast<size_t>(keys - seen) * 4);
  if (seen == 0) return;
  const float top = largest(x, seen);
  if (!(top - top == 0)) {
    for (int64_t j = 0; j < seen; ++j) x[j] = __builtin_nanf("");
    return;
  }
  float* room = reinterpret_cast<float*>(scratch);
  const double tilt = static_cast<double>(order) - 1;
  const ThresholdKind kind = kind_of(order);
  if (kind == kLinear) return weigh_row<kLinear>(x, seen, top, tilt, room);
  if (kind == kSquare) return weigh_row<kSquare>(x, seen, top, tilt, room);
  weigh_row<kPower>(x, seen, top, tilt, room);
}

// dx = s (dw - mean of dw weighted by s), s = w^(2 - order) on the support.
template <int Kind>
inline void differentiate_row(const float* w, float* dw, int64_t n, double tilt, float* s) {
  if constexpr (Kind == kLinear) {
    for (int64_t j = 0; j < n; ++j) s[j] = w[j] > 0 ? 1.0f : 0.0f;
  } else if constexpr (Kind == kSquare) {
    for (int64_t j = 0; j < n; ++j) s[j] = sqrtf(w[j]);
  } else {
    for (int64_t j = 0; j < n; ++j) s[j] = w[j] > 0 ? static_cast<float>(pow(static_cast<double>(w[j]), 1 - tilt)) : 0.0f;
  }
  vd weights{}, products{};
  int64_t j = 0;
  for (; j + kHalf <= n; j += kHalf) {
    const vd each = load_wide(s + j);
    weights += each;
    products += each * load_wide(dw + j);
  }
  double weight = total(weights), product = total(products);
  for (; j < n; ++j) {
    weight += static_cast<double>(s[j]);
    product += static_cast<double>(s[j]) * static_cast<double>(dw[j]);
  }
  const float mean = static_cast<float>(weight > 0 || weight != weight ? product / weight : 0.0);
  for (int64_t i = 0; i < n; ++i) dw[i] = s[i] * (dw[i] - mean);
}

// The gradient of the order; s as above, dw still the gradient of the weights.
inline double order_gradient(const float* w, const float* dw, int64_t n, double tilt) {
  double slope = 0, entropy = 0, by_weight = 0, by_slope = 0, by_entropy = 0;
  for (int64_t j = 0; j < n; ++j) {
    if (w[j] == 0) continue;
    const double each = static_cast<double>(w[j]), d = static_cast<double>(dw[j]);
    const double s = pow(each, 1 - tilt), e = each * log(each);
    slope += s;
    entropy += e;
    by_weight += d * each;
    by_slope += d * s;
    by_entropy += d * e;
  }
  if (slope == 0) return 0;
  return (by_weight - by_slope / slope) / (tilt * tilt) - (by_entropy - by_slope / slope * entropy) / tilt;
}

inline void threshold_differentiate(const float* w, float* dw, int64_t seen, int64_t keys, float order, double* dorder, char* scratch) {
  memset(dw + seen, 0, static_cast<size_t>(keys - seen) * 4);
  float* room = reinterpret_cast<float*>(scratch);
  const double tilt = static_cast<double>(order) - 1;
  if (dorder) *dorder = order_gradient(w, dw, seen, tilt);
  const ThresholdKind kind = kind_of(order);
  if (kind == kLinear) return differentiate_row<kLinear>(w, dw, seen, tilt, room);
  if (kind == kSquare) return differentiate_row<kSquare>(w, dw, seen, tilt, room);
  differentiate_row<kPower>(w, dw, seen, tilt, room);
}

inline int64_t threshold_scratch(int64_t keys) { return (keys + 2 * kLanes) * 4; }

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
