/* Sparsemax and entmax: turns rows of scores into weights, in place, with the C ABI of screening.h.
 *
 *     w_j = max((order - 1) x_j - tau, 0)^(1 / (order - 1)), with tau such that sum_j w_j = 1
 *
 * The caller computes the products with queries, keys and values. Everything is fp32; tau is found in fp64.
 */
#ifndef KEYSIFT_THRESHOLDS_H
#define KEYSIFT_THRESHOLDS_H

#include "screening.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A contiguous (matrices, rows, keys) tensor. Row i of a matrix sees its first visible + i keys, clamped to 0 .. keys; with a
 * window, only the last `window` of these visible + i. Entries of other keys are not read, and are written as 0. */
#define KEYSIFT_THRESHOLD_ROWS_FIELDS(F) \
  F(int64_t, matrices)                   \
  F(int64_t, rows)                       \
  F(int64_t, keys)                       \
  F(int64_t, visible)                    \
  F(int64_t, window) /* 0: none */       \
  F(const float*, orders) /* (matrices), each above 1 and at most 2 */
KEYSIFT_STRUCT(keysift_threshold_rows, KEYSIFT_THRESHOLD_ROWS_FIELDS);

/* Turns scores into weights. A row whose visible maximum is not finite becomes NaN at its visible keys. */
KEYSIFT_API int keysift_threshold_weigh(const keysift_threshold_rows* rows, float* x);

/* Turns gradients of weights into gradients of scores; w as written by keysift_threshold_weigh. dorders receives the gradient
 * of each matrix's order, and may be NULL. */
KEYSIFT_API int keysift_threshold_differentiate(const keysift_threshold_rows* rows, const float* w, float* dw, double* dorders);

#ifdef __cplusplus
}
#endif
#endif
