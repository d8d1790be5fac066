// Groups of the keys of a long row, which the forward pass uses to refuse keys (docs/search.md).
#pragma once

#include <memory>
#include <vector>

#include "plan.h"
#include "search_layout.h"

namespace keysift {

// The memory of EpochBlocks.
struct GroupedEpoch {
  int64_t count = 0;
  std::vector<float> keys, centres, limits;
  std::vector<int32_t> members, sizes;
};

struct GroupedTile {
  bool finite = true, used = false;
  int64_t estimated_at = 0;  // epochs
  std::vector<GroupedEpoch> epochs;
  std::vector<EpochBlocks> views;
};

}  // namespace keysift

struct keysift_key_groups {
  explicit keysift_key_groups(bool always_) : always(always_) {}
  const bool always;
  std::vector<keysift::GroupedTile> tiles;
  std::vector<keysift::TileBlocks> blocks;  // of the tiles, for the kernels
};

namespace keysift {

// Groups the epochs that are complete, of tiles that use groups. Returns a keysift_status of run_tasks.
int update_groups(keysift_key_groups* groups, const Plan& plan, const keysift_segment& segment, int64_t threads);

}  // namespace keysift
