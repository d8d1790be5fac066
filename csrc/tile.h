/* Gated tiles of a layer (arXiv:2604.01178v3, eqs. 15 to 18, without the projections), behind a C ABI.
 *
 *     out_i = u_i * tanh(SiLU(g_i)) * scale        u: screening.h;  SiLU(x) = x / (1 + exp(-x))
 *
 * Strides are free, so that q, k, v and g may be channels of one projection (batch, token, channel), and out is written as
 * the next projection reads it. Rules for NaN, segments, dtypes and threads are those of screening.h.
 */
#ifndef KEYSIFT_TILE_H
#define KEYSIFT_TILE_H

#include "screening.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KEYSIFT_GATE_FIELDS(F)                                                          \
  F(keysift_view, g) /* (batch, tile, query, value width); data NULL: the gate is 1 */ \
  F(const float*, scale) /* (tiles) */
KEYSIFT_STRUCT(keysift_gate, KEYSIFT_GATE_FIELDS);

/* Gradients, overwritten. */
#define KEYSIFT_GATE_GRADIENTS_FIELDS(F) \
  F(keysift_view, dg) /* data NULL where g is */ \
  F(double*, dscale) /* (tiles) */
KEYSIFT_STRUCT(keysift_gate_gradients, KEYSIFT_GATE_GRADIENTS_FIELDS);

/* Writes out and, unless NULL, the inputs of backward: norm and h as in keysift_forward. */
KEYSIFT_API int keysift_tile_forward(const keysift_problem* problem, const keysift_gate* gate, const keysift_view* out,
                                     float* norm, float* h);

/* norm and h as written by forward; dout is the gradient of out. A query whose output is NaN passes no gradient to q, k and v;
 * its own row of dg and dscale are NaN. */
KEYSIFT_API int keysift_tile_backward(const keysift_problem* problem, const keysift_gate* gate, const float* norm,
                                      const float* h, const keysift_view* dout, const keysift_gradients* gradients,
                                      const keysift_gate_gradients* gate_gradients);

#ifdef __cplusplus
}
#endif
#endif
