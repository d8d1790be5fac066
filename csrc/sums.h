/* Sums over keys whose weights need one pass at most, behind the C ABI of screening.h.
 *
 *     x_ij = scale <q_i, k_j> + shift_i
 *     out_i = sum_j top(x_ij) v_j / (sum_j bottom(x_ij) + rest)
 *
 * for keys with offset + i - j >= 0 in their piece. The first kinds have no denominator. Everything is fp32.
 */
#ifndef KEYSIFT_SUMS_H
#define KEYSIFT_SUMS_H

#include "screening.h"

#ifdef __cplusplus
extern "C" {
#endif

enum keysift_kind {
  KEYSIFT_RELU = 0,           /* top = max(x, 0) */
  KEYSIFT_RELU_SQUARED = 1,   /* top = max(x, 0)^2 */
  KEYSIFT_RELU_EXP = 2,       /* top = max(exp(x) - 1, 0) */
  KEYSIFT_SIGMOID = 3,        /* top = 1 / (1 + exp(-x)) */
  KEYSIFT_RELU_EXP_SHARE = 4, /* top = bottom = max(exp(x) - 1, 0) */
  KEYSIFT_SOFTPICK = 5        /* top = max(exp(x) - 1, 0), bottom = |exp(x) - 1| */
};

typedef struct keysift_sums_problem {
  int64_t batch;
  int64_t heads;
  int64_t queries;
  int64_t keys;
  int64_t key_width;
  int64_t value_width;
  int32_t kind;
  float scale;
  float rest; /* added to the denominator, where there is one */
  keysift_view q, k, v;
  const keysift_piece* pieces; /* as in keysift_problem */
  int64_t piece_count;
  int64_t offset;
  const float* shift; /* (batch, heads, queries), or NULL: 0 */
} keysift_sums_problem;

/* Overwritten where a piece holds the row, and left alone elsewhere. */
typedef struct keysift_sums_gradients {
  keysift_view dq, dk, dv;
  float* dshift; /* (batch, heads, queries), or NULL */
} keysift_sums_gradients;

/* Writes out, and the logarithm of the denominator (0 for kinds without one, +inf where it is 0) as
 * (batch, heads, queries), both where a piece holds the query only. log may be NULL. */
KEYSIFT_API int keysift_sums_forward(const keysift_sums_problem* problem, const keysift_view* out, float* log);

/* out and log as forward wrote them. The result does not depend on the number of threads. */
KEYSIFT_API int keysift_sums_backward(const keysift_sums_problem* problem, const keysift_view* out, const float* log,
                                      const keysift_view* dout, const keysift_sums_gradients* gradients);

#ifdef __cplusplus
}
#endif
#endif
