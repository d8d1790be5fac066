/* Stick-breaking attention, from the newest visible key to the oldest, with the C ABI of screening.h.
 *
 *     x_ij = scale <q_i, k_j>,  b = sigmoid(x)
 *     out_i = sum_j b_ij prod_l (1 - b_il) v_j,  l over the visible keys newer than j
 *     rest_i = prod_l (1 - b_il) over all visible keys
 *
 * for keys with 0 <= offset + i - j < window in their segment. Everything is fp32; sums of logarithms are fp64.
 */
#ifndef KEYSIFT_STICKS_H
#define KEYSIFT_STICKS_H

#include "screening.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KEYSIFT_STICKS_PROBLEM_FIELDS(F)                                \
  F(int64_t, batch)                                                     \
  F(int64_t, heads)                                                     \
  F(int64_t, queries)                                                   \
  F(int64_t, keys)                                                      \
  F(int64_t, key_width)                                                 \
  F(int64_t, value_width)                                               \
  F(int64_t, window) /* 0: every key */                                 \
  F(float, scale)                                                       \
  F(keysift_view, q)                                                    \
  F(keysift_view, k)                                                    \
  F(keysift_view, v)                                                    \
  F(const keysift_segment*, segments) /* as in keysift_problem */       \
  F(int64_t, segment_count)                                             \
  F(int64_t, offset)
KEYSIFT_STRUCT(keysift_sticks_problem, KEYSIFT_STICKS_PROBLEM_FIELDS);

/* Rows inside a segment are overwritten; other rows are left unchanged. */
#define KEYSIFT_STICKS_GRADIENTS_FIELDS(F) \
  F(keysift_view, dq)                      \
  F(keysift_view, dk)                      \
  F(keysift_view, dv)
KEYSIFT_STRUCT(keysift_sticks_gradients, KEYSIFT_STICKS_GRADIENTS_FIELDS);

/* Writes out, the logarithm of the rest, and the first key of the segment that was read, the last two as
 * (batch, heads, queries), for queries inside a segment only. Keys before the first one have weights that are zero in fp32. */
KEYSIFT_API int keysift_sticks_forward(const keysift_sticks_problem* problem, const keysift_view* out, double* log_rest,
                                       int64_t* first_key);

/* log_rest and first_key as written by forward, drest the gradient of the rest. The result does not depend on the number of
 * threads. */
KEYSIFT_API int keysift_sticks_backward(const keysift_sticks_problem* problem, const double* log_rest,
                                        const int64_t* first_key, const keysift_view* dout, const float* drest,
                                        const keysift_sticks_gradients* gradients);

#ifdef __cplusplus
}
#endif
#endif
