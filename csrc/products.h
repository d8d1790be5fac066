// Small matrix products, with the sums in registers.
#pragma once

#include "plan.h"
#include "simd.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

constexpr int kRows = 4;  // rows held in registers
// Vectors held in registers per row: 4 x 4 accumulators fill half of AVX-512's 32 registers, 4 x 2 half of the 16 elsewhere.
constexpr int kColumns = kLanes == 16 ? 4 : 2;
// Rows held in registers when one vector per row is left, so that enough sums run in parallel.
constexpr int kTallRows = 8;
constexpr int kVectors = kBlock / kLanes;

// out[r][c] = sum_x a[r][x] packed[x][c] for kRows rows and Columns vectors of a block.
template <int Columns>
KEYSIFT_INLINE void product(const float* a, int64_t a_stride, const float* packed, int64_t width, vf (&out)[kRows][Columns]) {
  KEYSIFT_UNROLL for (int r = 0; r < kRows; ++r) {
    KEYSIFT_UNROLL for (int c = 0; c < Columns; ++c) out[r][c] = vf{};
  }
  for (int64_t x = 0; x < width; ++x) {
    vf b[Columns];
    KEYSIFT_UNROLL for (int c = 0; c < Columns; ++c) b[c] = load(packed + x * kBlock + c * kLanes);
    KEYSIFT_UNROLL for (int r = 0; r < kRows; ++r) {
      const vf scalar = splat(a[r * a_stride + x]);
      KEYSIFT_UNROLL for (int c = 0; c < Columns; ++c) out[r][c] += scalar * b[c];
    }
  }
}

// to[r][:] += sum_p weight[r * row_step + p * step] from[p][:] for Rows rows and Columns vectors.
template <int Rows, int Columns>
KEYSIFT_INLINE void add_products_tile(int64_t count, const float* weight, int64_t row_step, int64_t step, const float* from,
                                      int64_t from_stride, float* to, int64_t to_stride) {
  // Start from zero and add at the end: sums of sums lose less precision than one long sum.
  vf acc[Rows][Columns];
  KEYSIFT_UNROLL for (int r = 0; r < Rows; ++r) {
    KEYSIFT_UNROLL for (int c = 0; c < Columns; ++c) acc[r][c] = vf{};
  }
  for (int64_t p = 0; p < count; ++p) {
    vf b[Columns];
    KEYSIFT_UNROLL for (int c = 0; c < Columns; ++c) b[c] = load(from + p * from_stride + c * kLanes);
    KEYSIFT_UNROLL for (int r = 0; r < Rows; ++r) {
      const vf scalar = splat(weight[r * row_step + p * step]);
      KEYSIFT_UNROLL for (int c = 0; c < Columns; ++c) acc[r][c] += scalar * b[c];
    }
  }
  KEYSIFT_UNROLL for (int r = 0; r < Rows; ++r) {
    KEYSIFT_UNROLL for (int c = 0; c < Columns; ++c) {
      float* at = to + r * to_stride + c * kLanes;
      store(at, load(at) + acc[r][c]);
    }
  }
}

// The same for any multiple of kTallRows rows and any padded width.
KEYSIFT_INLINE void add_products(int64_t rows, int64_t width, int64_t count, const float* weight, int64_t row_step,
                                 int64_t step, const float* from, int64_t from_stride, float* to) {
  int64_t x = 0;
  for (; x + kColumns * kLanes <= width; x += kColumns * kLanes) {
    for (int64_t r = 0; r < rows; r += kRows) {
      add_products_tile<kRows, kColumns>(count, weight + r * row_step, row_step, step, from + x, from_stride, to + r * width + x, width);
    }
  }
  for (; x < width; x += kLanes) {
    for (int64_t r = 0; r < rows; r += kTallRows) {
      add_products_tile<kTallRows, 1>(count, weight + r * row_step, row_step, step, from + x, from_stride, to + r * width + x, width);
    }
  }
}

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
