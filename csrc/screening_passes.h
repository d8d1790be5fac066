// Both passes of screening, for the C API and for tiles.
#pragma once

#include <vector>

#include "plan.h"

namespace keysift {

int check_problem(const keysift_problem* problem);

// gate may be NULL; see tile.h.
int screening_forward(const keysift_problem* problem, const keysift_gate* gate, const keysift_view* out, float* norm, float* h);

// du_dtype: of du, which may differ from that of the problem.
int screening_backward(const keysift_problem* problem, const keysift_view* u, const float* norm, const float* h,
                       const keysift_view* du, int32_t du_dtype, const keysift_gradients* gradients);

}  // namespace keysift
