// The kernels of decoding for one instruction set. Compiled once per variant, with KEYSIFT_VARIANT naming the namespace.
#include "decode_kernel.h"

namespace keysift {
namespace KEYSIFT_VARIANT {

extern const DecodeKernels decode{decode_scratch, decode_run};

}  // namespace KEYSIFT_VARIANT
}  // namespace keysift
