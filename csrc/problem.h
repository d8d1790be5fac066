// What sums.cpp and sticks.cpp share: checks of a problem, its segments, its threads, and its blocks of queries.
// A problem has the fields of keysift_sums_problem that are used here.
#pragma once

#include <algorithm>
#include <vector>

#include "failure.h"
#include "isa.h"
#include "parallel.h"
#include "segments.h"

namespace keysift {

// Minimum number of backward tasks, also with fewer heads. Fixed, so that sums do not depend on the number of threads.
constexpr int64_t kTargetTasks = 16;
constexpr int64_t kSerialPairs = 1 << 14;

template <class Problem>
int check_problem(const Problem* p) {
  if (!p) return fail(KEYSIFT_BAD_ARGUMENT, "problem is NULL");
  for (int64_t size : {p->heads, p->key_width, p->value_width}) {
    if (size < 1) return fail(KEYSIFT_BAD_ARGUMENT, "heads, key_width and value_width must be at least 1");
  }
  for (int64_t size : {p->batch, p->queries, p->keys, p->window}) {
    if (size < 0 || size > kMaxPosition) {
      return fail(KEYSIFT_BAD_ARGUMENT, "batch, queries, keys and window must be at least 0");
    }
  }
  const int segments = check_segments(p->segments, p->segment_count, p->offset, p->batch, p->queries, p->keys);
  if (segments != KEYSIFT_OK) return segments;
  const bool rows = p->batch > 0;
  if ((rows && p->queries > 0 && !p->q.data) || (rows && p->keys > 0 && (!p->k.data || !p->v.data))) {
    return fail(KEYSIFT_BAD_ARGUMENT, "q, k and v must not be NULL");
  }
  return check_isa();
}

template <class Problem>
std::vector<keysift_segment> segments_of(const Problem& p) {
  return list_segments(p.segments, p.segment_count, p.offset, p.batch, p.queries, p.keys);
}

template <class Problem>
int64_t threads_for(const Problem& p) {
  return p.batch * p.heads * p.queries * std::min<int64_t>(p.keys, kSerialPairs) < kSerialPairs ? 1 : thread_count();
}

struct QueryBlock {
  const keysift_segment* segment;
  int64_t first;
};

// Blocks of at most `size` queries. The last queries of a segment see the most keys; they come first, so that the cheapest
// tasks run at the end.
inline std::vector<QueryBlock> query_blocks(const std::vector<keysift_segment>& segments, int64_t size) {
  std::vector<QueryBlock> blocks;
  for (const keysift_segment& segment : segments) {
    for (int64_t first = 0; first < segment.queries; first += size) blocks.push_back({&segment, first});
  }
  std::stable_sort(blocks.begin(), blocks.end(), [](const QueryBlock& x, const QueryBlock& y) { return x.first > y.first; });
  return blocks;
}

}  // namespace keysift
