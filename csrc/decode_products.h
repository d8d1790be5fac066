// Matrix-vector products for a few vectors at a time, with the matrix read once, in fp32, bf16 or f16.
#pragma once

#include "decode_plan.h"
#include "rows.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

template <int Dtype>
struct Elements {
  typedef uint16_t type;
  KEYSIFT_INLINE static vf load_all(const uint16_t* p) {
    if constexpr (Dtype == KEYSIFT_F16) {
#if defined(__AVX512F__)
      // The unmasked form makes gcc 12 warn about its own header.
      return (vf)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__F16C__)
      return (vf)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
      vf x{};
      for (int l = 0; l < kLanes; ++l) x[l] = from_f16(p[l]);
      return x;
#endif
    } else {
      typedef uint16_t half __attribute__((vector_size(kLanes * 2)));
      typedef uint32_t word __attribute__((vector_size(kLanes * 4)));
      half bits;
      memcpy(&bits, p, sizeof bits);
      return (vf)(__builtin_convertvector(bits, word) << 16);
    }
  }
  // As write_row: f16 does not overflow.
  KEYSIFT_INLINE static void store_all(uint16_t* p, vf x) {
    if constexpr (Dtype == KEYSIFT_F16) {
#if defined(__AVX512F__)
      const vf most = splat(65504.0f);
      x = x > most ? most : (x < -most ? -most : x);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_maskz_cvtps_ph(0xffff, (__m512)x, 0));
      return;
#endif
    }
    float each[kLanes];
    store(each, x);
    write_row(each, Dtype, kLanes, reinterpret_cast<char*>(p));
  }
};

template <>
struct Elements<KEYSIFT_F32> {
  typedef float type;
  KEYSIFT_INLINE static vf load_all(const float* p) { return load(p); }
  KEYSIFT_INLINE static void store_all(float* p, vf x) { store(p, x); }
};

// The first `count` lanes from memory, the others 0. Nothing past them is read.
template <int Dtype>
KEYSIFT_INLINE vf load_part(const typename Elements<Dtype>::type* p, int64_t count) {
  typename Elements<Dtype>::type part[kLanes] = {};
  memcpy(part, p, static_cast<size_t>(count) * sizeof part[0]);
  return Elements<Dtype>::load_all(part);
}

KEYSIFT_INLINE void store_part(float* p, vf x, int64_t count) { memcpy(p, &x, static_cast<size_t>(count) * 4); }

// Asks for the cache line this many bytes after p, which need not exist.
KEYSIFT_INLINE void prefetch(const void* p, int64_t ahead) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(p) + static_cast<uintptr_t>(ahead)), 0, 2);
}

// Products of kLanes rows of a matrix with Batch vectors: lane r of out[b] is <row r, x[b]>, and of squares <row r, row r>. Rows
// from `rows` on give 0. Memory is read strictly in order: the processor prefetches one stream better than several.
template <int Dtype, int Batch, bool Squares>
KEYSIFT_INLINE void row_products(const typename Elements<Dtype>::type* matrix, int64_t width, int rows, const float* x,
                                 int64_t x_stride, vf (&out)[Batch], vf* squares) {
  typedef Elements<Dtype> E;
  constexpr int kChains = Batch == 4 ? 1 : 2;  // independent sums, so that a sum need not wait for the one before
  const int64_t ahead = Dtype == KEYSIFT_F32 ? prefetch_bytes : kPrefetchBytes;
  vf partial[Batch][kLanes], partial_squares[kLanes];
  const int64_t even = width / (kChains * kLanes) * (kChains * kLanes);
  for (int r = 0; r < kLanes; ++r) {
    vf acc[Batch][kChains], own[kChains];
    KEYSIFT_UNROLL for (int i = 0; i < kChains; ++i) {
      own[i] = vf{};
      KEYSIFT_UNROLL for (int b = 0; b < Batch; ++b) acc[b][i] = vf{};
    }
    const auto add = [&](int i, vf w, int64_t c) {
      KEYSIFT_UNROLL for (int b = 0; b < Batch; ++b) acc[b][i] += w * load(x + b * x_stride + c);
      if constexpr (Squares) own[i] += w * w;
    };
    if (r < rows) {
      const typename E::type* row = matrix + r * width;
      for (int64_t c = 0; c < even; c += kChains * kLanes) {
        KEYSIFT_UNROLL for (int i = 0; i < kChains; ++i) {
          if (i * kLanes * sizeof *row % kLineBytes == 0) prefetch(row + c + i * kLanes, ahead);
          add(i, E::load_all(row + c + i * kLanes), c + i * kLanes);
        }
      }
      int64_t c = even;
      for (; c + kLanes <= width; c += kLanes) add(0, E::load_all(row + c), c);
      if (c < width) add(0, load_part<Dtype>(row + c, width - c), c);
    }
    KEYSIFT_UNROLL for (int b = 0; b < Batch; ++b) partial[b][r] = kChains == 2 ? acc[b][0] + acc[b][kChains - 1] : acc[b][0];
    partial_squares[r] = kChains == 2 ? own[0] + own[kChains - 1] : own[0];
  }
  KEYSIFT_UNROLL for (int b = 0; b < Batch; ++b) out[b] = sums(partial[b]);
  if constexpr (Squares) *squares = sums(partial_squares);
}

// Calls emit(b, row, rows, products, squares) for every group of kLanes rows of [first, last) and every vector b. The vectors are
// padded with zeros.
template <int Dtype, bool Squares, class Emit>
KEYSIFT_INLINE void products_of_rows(const void* matrix, int64_t width, int64_t first, int64_t last, const float* x,
                                     int64_t x_stride, int64_t batch, Emit emit) {
  typedef typename Elements<Dtype>::type Element;
  for (int64_t row = first; row < last; row += kLanes) {
    const Element* at = static_cast<const Element*>(matrix) + row * width;
    const int rows = static_cast<int>(smaller<int64_t>(kLanes, last - row));
    vf squares{};
    int64_t b = 0;
    for (; b + 4 <= batch; b += 4) {
      vf out[4];
      row_products<Dtype, 4, Squares>(at, width, rows, x + b * x_stride, x_stride, out, &squares);
      for (int i = 0; i < 4; ++i) emit(b + i, row, rows, out[i], squares);
    }
    for (; b + 2 <= batch; b += 2) {
      vf out[2];
      row_products<Dtype, 2, Squares>(at, width, rows, x + b * x_stride, x_stride, out, &squares);
      for (int i = 0; i < 2; ++i) emit(b + i, row, rows, out[i], squares);
    }
    if (b < batch) {
      vf out[1];
      row_products<Dtype, 1, Squares>(at, width, rows, x + b * x_stride, x_stride, out, &squares);
      emit(b, row, rows, out[0], squares);
    }
  }
}

// to[:] += sum_e weight[e] * rows[slot[e]][:] for rows of `width` elements; to is padded.
template <int Dtype, int Columns>
KEYSIFT_INLINE void add_weighted_columns(const typename Elements<Dtype>::type* rows, int64_t width, int64_t x, int64_t rest,
                                         const int64_t* slots, int64_t first_slot, const float* weights, int64_t count,
                                         float* to) {
  vf acc[Columns];
  KEYSIFT_UNROLL for (int c = 0; c < Columns; ++c) acc[c] = vf{};
  for (int64_t e = 0; e < count; ++e) {
    const typename Elements<Dtype>::type* row = rows + (slots ? slots[e] : first_slot + e) * width + x;
    const vf weight = splat(weights[e]);
    KEYSIFT_UNROLL for (int c = 0; c < Columns; ++c) {
      acc[c] += weight * (rest ? load_part<Dtype>(row, rest) : Elements<Dtype>::load_all(row + c * kLanes));
    }
  }
  KEYSIFT_UNROLL for (int c = 0; c < Columns; ++c) store(to + x + c * kLanes, load(to + x + c * kLanes) + acc[c]);
}

// slots: the row of each weight, or NULL: rows from first_slot on.
template <int Dtype>
inline __attribute__((noinline)) void add_weighted_rows(const void* memory, int64_t width, const int64_t* slots,
                                                        int64_t first_slot, const float* weights, int64_t count, float* to) {
  const typename Elements<Dtype>::type* rows = static_cast<const typename Elements<Dtype>::type*>(memory);
  int64_t x = 0;
  for (; x + 4 * kLanes <= width; x += 4 * kLanes) {
    add_weighted_columns<Dtype, 4>(rows, width, x, 0, slots, first_slot, weights, count, to);
  }
  const int64_t vectors = (width - x) / kLanes;
  if (vectors == 3) add_weighted_columns<Dtype, 3>(rows, width, x, 0, slots, first_slot, weights, count, to);
  if (vectors == 2) add_weighted_columns<Dtype, 2>(rows, width, x, 0, slots, first_slot, weights, count, to);
  if (vectors == 1) add_weighted_columns<Dtype, 1>(rows, width, x, 0, slots, first_slot, weights, count, to);
  x += vectors * kLanes;
  if (x < width) add_weighted_columns<Dtype, 1>(rows, width, x, width - x, slots, first_slot, weights, count, to);
}

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
