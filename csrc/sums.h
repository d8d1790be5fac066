/* Additive mechanisms: sums over keys in one pass, with the C ABI of screening.h.
 *
 *     x_ij = scale <q_i, k_j> + shift_i
 *     out_i = sum_j numerator(x_ij) v_j / (sum_j denominator(x_ij) + eps)
 *
 * for keys with 0 <= offset + i - j < window in their segment. The first four kinds have no denominator. Everything is fp32.
 */
#ifndef KEYSIFT_SUMS_H
#define KEYSIFT_SUMS_H

#include "screening.h"

#ifdef __cplusplus
extern "C" {
#endif

enum keysift_kind {
  KEYSIFT_RELU = 0,           /* numerator = max(x, 0) */
  KEYSIFT_RELU_SQUARED = 1,   /* numerator = max(x, 0)^2 */
  KEYSIFT_RELU_EXP = 2,       /* numerator = max(exp(x) - 1, 0) */
  KEYSIFT_SIGMOID = 3,        /* numerator = 1 / (1 + exp(-x)) */
  KEYSIFT_RELU_EXP_NORMALISED = 4, /* numerator = denominator = max(exp(x) - 1, 0) */
  KEYSIFT_SOFTPICK = 5,       /* numerator = max(exp(x) - 1, 0), denominator = |exp(x) - 1| */
  KEYSIFT_RECTIFIED = 6,      /* weight = max(softmax(x) - level, 0); two passes over the scores of a row */
  KEYSIFT_DECAYED = 7         /* weight = softmax(x_ij + C_i - C_j), or 0 below exp(-70); C is the decay, C_i of the newest key */
};

#define KEYSIFT_SUMS_PROBLEM_FIELDS(F)                                \
  F(int64_t, batch)                                                   \
  F(int64_t, heads)                                                   \
  F(int64_t, queries)                                                 \
  F(int64_t, keys)                                                    \
  F(int64_t, key_width)                                               \
  F(int64_t, value_width)                                             \
  F(int64_t, window) /* 0: every key */                               \
  F(int32_t, kind) /* a keysift_kind */                               \
  F(float, scale)                                                     \
  F(float, eps) /* added to the denominator, where there is one */   \
  F(keysift_view, q)                                                  \
  F(keysift_view, k)                                                  \
  F(keysift_view, v)                                                  \
  F(const keysift_segment*, segments) /* as in keysift_problem */         \
  F(int64_t, segment_count)                                             \
  F(int64_t, offset)                                                  \
  F(const float*, shift) /* (batch, heads, queries), or NULL: 0. For KEYSIFT_RECTIFIED the levels, at least 0, not NULL; */ \
                         /* for KEYSIFT_DECAYED numbers within 60 below the largest x + C_i - C_j or near it, not NULL */   \
  F(const double*, decay) /* KEYSIFT_DECAYED: C of each key, (batch, heads, keys) */                                        \
  F(const int64_t*, first_key) /* KEYSIFT_DECAYED: (batch, heads, queries), a key of the row; older ones are not read */
KEYSIFT_STRUCT(keysift_sums_problem, KEYSIFT_SUMS_PROBLEM_FIELDS);

/* Rows inside a segment are overwritten; other rows are left unchanged. */
#define KEYSIFT_SUMS_GRADIENTS_FIELDS(F) \
  F(keysift_view, dq)                    \
  F(keysift_view, dk)                    \
  F(keysift_view, dv)                    \
  F(float*, dshift) /* (batch, heads, queries), or NULL. For KEYSIFT_DECAYED the sums of dx over each row */ \
  F(float*, dkeys)  /* KEYSIFT_DECAYED: (batch, heads, keys), the sums of dx over each column; otherwise NULL */
KEYSIFT_STRUCT(keysift_sums_gradients, KEYSIFT_SUMS_GRADIENTS_FIELDS);

/* Writes out, and the logarithm of the denominator (0 for kinds without one, +inf where it is 0) as
 * (batch, heads, queries), both for queries inside a segment only. log may be NULL.
 * KEYSIFT_RECTIFIED writes two numbers for each query, as (2, batch, heads, queries): its largest score m, and the inverse of
 * the sum of exp(x - m). It also writes kept, the sum of the values with weight above 0, unless that is NULL. */
KEYSIFT_API int keysift_sums_forward(const keysift_sums_problem* problem, const keysift_view* out, const keysift_view* kept,
                                     float* log);

/* out and log as written by forward; for KEYSIFT_RECTIFIED out + level kept, and no gradient of the level. The result does not
 * depend on the number of threads. */
KEYSIFT_API int keysift_sums_backward(const keysift_sums_problem* problem, const keysift_view* out, const float* log,
                                      const keysift_view* dout, const keysift_sums_gradients* gradients);

#ifdef __cplusplus
}
#endif
#endif
