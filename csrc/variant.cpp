// Compiled once per instruction set, with KEYSIFT_VARIANT naming the namespace.
#include "backward.h"
#include "forward.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

int64_t padded(int64_t width) { return Shape<0, 0>::pad(width); }

template <class S>
Kernels kernels_of() {
  return {padded, forward_scratch<S>, forward<S>, backward_scratch<S>, backward<S>, finish_dq<S>, finish_scratch<S>};
}

Kernels kernels(int64_t key_width, int64_t value_width) {
  if (key_width == 16 && value_width == 64) return kernels_of<Shape<16, 64>>();
  if (key_width == 16 && value_width == 128) return kernels_of<Shape<16, 128>>();
  if (key_width == 32 && value_width == 64) return kernels_of<Shape<32, 64>>();
  if (key_width == 32 && value_width == 128) return kernels_of<Shape<32, 128>>();
  return kernels_of<Shape<0, 0>>();
}

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
