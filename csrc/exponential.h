// exp(x) and exp(x) - 1 of a vector.
#pragma once

#include "simd.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

// exp(x) and exp(x) - 1, each correct to rounding, from exp(x) = 2^n exp(r) with |r| <= ln 2 / 2. Below -87 exp(x) is 0, above 88
// it is infinite.
struct Exponential {
  vf power, minus_one;
  KEYSIFT_INLINE explicit Exponential(vf x) {
    const vf low = splat(-87.0f), high = splat(88.0f);
    const vf inside = x < low ? low : (x > high ? high : x);
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the last bits.
    const vf round = splat(12582912.0f);
    const vf shifted = inside * splat(1.44269504f) + round;
    const vf n = shifted - round;
    const vf r = inside - n * splat(0.693359375f) - n * splat(-2.12194440e-4f);
    vf p = splat(1.98412698e-4f);
    p = p * r + splat(1.38888889e-3f);
    p = p * r + splat(8.33333333e-3f);
    p = p * r + splat(4.16666667e-2f);
    p = p * r + splat(1.66666667e-1f);
    p = p * r + splat(0.5f);
    p = p * r * r + r;
    const vf scale = (vf)(((vi)shifted << 23) + splat(int32_t{127 << 23}));
    const vf infinite = splat(__builtin_inff());
    power = x < low ? vf{} : (x > high ? infinite : scale + scale * p);
    minus_one = x > high ? infinite : scale * p + (scale - splat(1.0f));
  }
};

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
