// Chooses the variant of the kernels for this machine.
#pragma once

#include "plan.h"

namespace keysift {

// The kernels of the chosen variant. Call check_isa() first.
const Kernels& kernels();

// KEYSIFT_OK, or a failure if KEYSIFT_ISA names a variant that this machine cannot run.
int check_isa();

}  // namespace keysift
