// Moments: sums over keys that replace reading their values. docs/search.md derives them.
//
// An accepted key with score s has the relevance (a + b s)^2, with b = 1 / r and a = 1 - b. For any set of keys
//     sum (a + b s)^2 c v = a^2 M0 + 2 a b q.M1 + b^2 (q q^T):M2,   M0 = sum c v,  M1 = sum c k v^T,  M2 = sum c (k k^T) v^T
// where c is the inverse length of the value. What the refused keys of the set contribute is subtracted. In a window that fades, a key
// counts (1 + cos(t_i - t_j)) / 2 with t = pi token / window: three such sums, with c multiplied by 1, cos t_j and sin t_j.
#pragma once

#include "rows.h"
#include "search_layout.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

constexpr int kWide = kLanes / 2;

KEYSIFT_INLINE vd load(const double* p) {
  vd x;
  memcpy(&x, p, sizeof x);
  return x;
}
KEYSIFT_INLINE void store(double* p, vd x) { memcpy(p, &x, sizeof x); }
KEYSIFT_INLINE vd splat(double x) { return x - vd{}; }

// Keys and values to add to the sums, as columns and rows of fp64. Unused places hold zeros.
struct MomentKeys {
  double *keys, *values, *weights;  // (key width, kMomentKeys), (kMomentKeys, value pad), (3, kMomentKeys)
  static int64_t doubles(int64_t key_width, int64_t value_pad) { return kMomentKeys * (key_width + value_pad + 3); }
  MomentKeys(double* memory, int64_t key_width, int64_t value_pad)
      : keys(memory), values(memory + kMomentKeys * key_width), weights(values + kMomentKeys * value_pad) {}
};

struct MomentSums {
  double* sums;  // (sets, 1 + key width + pairs of channels, value pad)
  int64_t key_width, value_pad;
  int sets;  // 3 if the window fades, else 1

  KEYSIFT_INLINE static void add_row(double* to, const double (&c)[kMomentKeys], const double* values, int64_t pad) {
    for (int64_t x = 0; x < pad; x += kWide) {
      vd sum = load(to + x);
      KEYSIFT_UNROLL for (int j = 0; j < kMomentKeys; ++j) sum += splat(c[j]) * load(values + j * pad + x);
      store(to + x, sum);
    }
  }

  void add(const MomentKeys& m) const {
    double* to = sums;
    for (int set = 0; set < sets; ++set) {
      double c[kMomentKeys], first[kMomentKeys], pair[kMomentKeys];
      for (int j = 0; j < kMomentKeys; ++j) c[j] = m.weights[set * kMomentKeys + j];
      add_row(to, c, m.values, value_pad);
      double* pairs = to + (1 + key_width) * value_pad;
      for (int64_t x = 0; x < key_width; ++x) {
        to += value_pad;
        for (int j = 0; j < kMomentKeys; ++j) first[j] = c[j] * m.keys[x * kMomentKeys + j];
        add_row(to, first, m.values, value_pad);
        for (int64_t y = x; y < key_width; ++y, pairs += value_pad) {
          for (int j = 0; j < kMomentKeys; ++j) pair[j] = first[j] * m.keys[y * kMomentKeys + j];
          add_row(pairs, pair, m.values, value_pad);
        }
      }
      to = pairs;
    }
  }

  KEYSIFT_INLINE static void add_scaled_row(double* to, double scale, const double* from, int64_t pad) {
    for (int64_t x = 0; x < pad; x += kWide) store(to + x, load(to + x) + splat(scale) * load(from + x));
  }

  // Adds what all keys of the sums contribute to a query: set s counts shares[s].
  void evaluate(const float* q, double b, const double* shares, double* to) const {
    const double a = 1 - b;
    const double* from = sums;
    for (int set = 0; set < sets; ++set) {
      const double share = shares[set];
      add_scaled_row(to, share * a * a, from, value_pad);
      from += value_pad;
      for (int64_t x = 0; x < key_width; ++x, from += value_pad) {
        add_scaled_row(to, share * 2 * a * b * static_cast<double>(q[x]), from, value_pad);
      }
      for (int64_t x = 0; x < key_width; ++x) {
        for (int64_t y = x; y < key_width; ++y, from += value_pad) {
          const double both = static_cast<double>(q[x]) * static_cast<double>(q[y]);
          add_scaled_row(to, share * b * b * (x == y ? both : 2 * both), from, value_pad);
        }
      }
    }
  }
};

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
