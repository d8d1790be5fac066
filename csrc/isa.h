// Picks the variant of the kernels this machine runs.
#pragma once

#include "plan.h"

namespace keysift {

using KernelsFor = Kernels (*)(int64_t key_width, int64_t value_width);
using SumsKernelsFor = SumsKernels (*)(int32_t kind);
using ThresholdKernelsFor = ThresholdKernels (*)();

struct Isa {
  const char* name;      // NULL if KEYSIFT_ISA cannot be met
  KernelsFor kernels;
  SumsKernelsFor sums_kernels;
  ThresholdKernelsFor threshold_kernels;
};

// Decided once, when first asked.
const Isa& isa();

}  // namespace keysift
