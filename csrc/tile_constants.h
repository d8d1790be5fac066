// Constants of the tiles of a screening problem.
#pragma once

#include <vector>

#include "plan.h"

namespace keysift {

// Uses the windows, acceptances, flags and w_th of the problem.
std::vector<Tile> tiles_of(const keysift_problem& problem);

}  // namespace keysift
