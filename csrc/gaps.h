// Ranges of queries or keys outside every segment, and zeros for them.
#pragma once

#include <cstring>
#include <vector>

#include "screening.h"

namespace keysift {

// Calls on_gap(row, from, to) for each range of queries (or keys) outside every segment.
template <class Callback>
void for_each_gap(const std::vector<keysift_segment>& segments, int64_t batch, int64_t length, int64_t keysift_segment::*first,
             int64_t keysift_segment::*count, Callback on_gap) {
  size_t x = 0;
  for (int64_t b = 0; b < batch; ++b) {
    int64_t at = 0;
    for (; x < segments.size() && segments[x].row == b; ++x) {
      if (segments[x].*first > at) on_gap(b, at, segments[x].*first);
      at = segments[x].*first + segments[x].*count;
    }
    if (at < length) on_gap(b, at, length);
  }
}

inline void write_zeros(const keysift_view& view, int32_t dtype, int64_t tiles, int64_t width, int64_t b, int64_t from, int64_t to) {
  const int64_t bytes = dtype == KEYSIFT_F32 ? 4 : 2;
  for (int64_t h = 0; h < tiles; ++h) {
    for (int64_t row = from; row < to; ++row) {
      char* at = static_cast<char*>(view.data) + (b * view.batch_stride + h * view.tile_stride + row * view.row_stride) * bytes;
      std::memset(at, 0, static_cast<size_t>(width * bytes));
    }
  }
}

}  // namespace keysift
