// Check and list the segments of a call (see keysift_segment in screening.h).
#pragma once

#include <vector>

#include "screening.h"

namespace keysift {

// Bound on sizes, offsets and positions: the sum of a few of them does not overflow.
constexpr int64_t kMaxPosition = int64_t{1} << 60;

// Returns KEYSIFT_OK if the segments are inside the rows, sorted, and without overlap; otherwise KEYSIFT_BAD_ARGUMENT.
int check_segments(const keysift_segment* segments, int64_t count, int64_t offset, int64_t batch, int64_t queries, int64_t keys);

// Returns a copy of the segments. With count -1, each row is one segment with this offset.
std::vector<keysift_segment> list_segments(const keysift_segment* segments, int64_t count, int64_t offset, int64_t batch,
                                           int64_t queries, int64_t keys);

}  // namespace keysift
