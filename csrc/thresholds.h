/* Rows of scores become the weights of sparsemax and entmax, in place, behind the C ABI of screening.h.
 *
 *     w_j = max((order - 1) x_j - tau, 0)^(1 / (order - 1)), tau the one number with sum_j w_j = 1
 *
 * The products with queries, keys and values are the caller's. Everything is fp32, tau is found in fp64.
 */
#ifndef KEYSIFT_THRESHOLDS_H
#define KEYSIFT_THRESHOLDS_H

#include "screening.h"

#ifdef __cplusplus
extern "C" {
#endif

/* (matrices, rows, keys) numbers, contiguous. Row i of a matrix sees its first seen + i keys, at least none and at most
 * all; what it does not see is not read, and is written as 0. */
typedef struct keysift_threshold_rows {
  int64_t matrices;
  int64_t rows;
  int64_t keys;
  int64_t seen;
  const float* orders; /* (matrices), each above 1 and at most 2 */
} keysift_threshold_rows;

/* Scores become weights. A row that sees a NaN, or no finite maximum, becomes NaN where it sees. */
KEYSIFT_API int keysift_threshold_weigh(const keysift_threshold_rows* rows, float* x);

/* Gradients of weights become gradients of scores; w as keysift_threshold_weigh wrote them. dorders, the gradient of each
 * matrix's order, may be NULL. */
KEYSIFT_API int keysift_threshold_differentiate(const keysift_threshold_rows* rows, const float* w, float* dw, double* dorders);

#ifdef __cplusplus
}
#endif
#endif
