// All kernels of one instruction set but those of decoding. Compiled once per variant, with KEYSIFT_VARIANT naming the namespace.
#include "gate.h"
#include "decode_plan.h"
#include "rectified_kernel.h"
#include "screening_backward.h"
#include "screening_forward.h"
#include "sticks_kernel.h"
#include "sums_kernel.h"
#include "threshold_kernel.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

int64_t padded(int64_t width) { return Shape<0, 0>::pad(width); }

template <class S>
ScreeningKernels screening_of() {
  return {padded,       forward_scratch<S>, forward<S>,      backward_scratch<S>, backward<S>,
          finish_dq<S>, finish_scratch<S>,  unit_keys<S>,    unit_queries<S>,     gate_scratch<S>,
          gate_backward<S>};
}

ScreeningKernels screening(int64_t key_width, int64_t value_width) {
  if (key_width == 16 && value_width == 64) return screening_of<Shape<16, 64>>();
  if (key_width == 16 && value_width == 128) return screening_of<Shape<16, 128>>();
  if (key_width == 32 && value_width == 64) return screening_of<Shape<32, 64>>();
  if (key_width == 32 && value_width == 128) return screening_of<Shape<32, 128>>();
  return screening_of<Shape<0, 0>>();
}

template <int Kind>
SumsKernels sums_of() {
  return {padded, sums_forward_scratch, sums_forward<Kind>, sums_backward_scratch, sums_backward<Kind>};
}

SumsKernels sums_kernels(int32_t kind) {
  if (kind == KEYSIFT_RELU) return sums_of<KEYSIFT_RELU>();
  if (kind == KEYSIFT_RELU_SQUARED) return sums_of<KEYSIFT_RELU_SQUARED>();
  if (kind == KEYSIFT_RELU_EXP) return sums_of<KEYSIFT_RELU_EXP>();
  if (kind == KEYSIFT_SIGMOID) return sums_of<KEYSIFT_SIGMOID>();
  if (kind == KEYSIFT_RELU_EXP_NORMALISED) return sums_of<KEYSIFT_RELU_EXP_NORMALISED>();
  if (kind == KEYSIFT_SOFTPICK) return sums_of<KEYSIFT_SOFTPICK>();
  if (kind == KEYSIFT_DECAYED) return sums_of<KEYSIFT_DECAYED>();
  return {padded, rectified_scratch, rectified_forward, sums_backward_scratch, sums_backward<KEYSIFT_RECTIFIED>};
}

extern const DecodeKernels decode;  // decode_variant.cpp

extern const Kernels kernels{screening,
                             sums_kernels,
                             {padded, sticks_scratch, sticks_forward, sticks_backward},
                             {threshold_scratch, threshold_weigh, threshold_differentiate},
                             &decode};

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
